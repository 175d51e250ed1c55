"""The forms of a new rollout: what it goes to, and its plan as rows."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django import forms
from msgspec import structs

from console.rollout_words import seconds
from controlplane.deployments import bounds
from controlplane.rollouts.plan import DEFAULT_PLAN, MAX_STEPS, Plan, Step, plan_faults, scaled, span
from tenants.errors import Invalid

_FEW = 50
"""Requests of a step where there is little traffic: enough to see what is plainly wrong."""
LITTLE_TRAFFIC = Plan(
    steps=(Step(5, 900, _FEW), Step(25, 1800, _FEW), Step(50, 1800, _FEW)),
    # The limits of the usual plan would take the noise of so few for harm.
    judge=structs.replace(
        scaled(DEFAULT_PLAN, samples=_FEW / DEFAULT_PLAN.steps[0].min_samples).judge, accept_unproven=True
    ),
)
PRESETS: dict[str, tuple[str, str, Plan]] = {
    "usual": (
        "Proven",
        "Every step waits until its requests can prove that the candidate keeps the limits.",
        DEFAULT_PLAN,
    ),
    "little": (
        "Little traffic",
        f"A step waits for {_FEW} requests only. So few prove little: limits are wider, a gate passes when what was "
        "measured is within its limit, and every verdict says what is not proven. What is plainly wrong still stops it "
        "at once, and a person approves all the same.",
        LITTLE_TRAFFIC,
    ),
}
"""Plans to begin from: a label, what it means, and the plan, whose judge holds however the steps are changed."""
USUAL = "usual"
_LABELS = {"hold_s": "The time", "min_samples": "the requests", "accept_unproven": "“Little traffic”"}
_ROW_DIGITS = 3


class SpanField(forms.CharField):
    """A time as people write it: ``1 h 30 min``. Its value is in seconds."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=40, widget=forms.TextInput(attrs={"autocomplete": "off"}), **options)

    def prepare_value(self, value: Any) -> Any:  # noqa: ANN401 - what was sent, or seconds
        """Show seconds as a span."""
        return span(value) if isinstance(value, int) else value

    def clean(self, value: Any) -> Any:  # noqa: ANN401 - Django's own signature
        """Return the seconds; None where nothing is written and nothing need be."""
        text = super().clean(value)
        if not text:
            return None
        found = seconds(text)
        if found is None:
            raise forms.ValidationError("Write a time with its unit, such as 10 min or 1 h 30 min.")
        return found


class StepForm(forms.Form):
    """One step. Without a weight it is none."""

    weight = forms.IntegerField(label="Traffic, %", required=False)
    hold = SpanField(label="At least", required=False)
    samples = forms.IntegerField(label="Requests", required=False)

    def clean(self) -> dict[str, Any]:
        """Want the rest where there is a weight."""
        filled: dict[str, Any] = super().clean() or self.cleaned_data
        if filled.get("weight") is not None:
            for name in ("hold", "samples"):
                if filled.get(name) is None and name not in self.errors:
                    self.add_error(name, "This is needed.")
        return filled

    def step(self) -> Step | None:
        """Return the step that a valid form describes."""
        filled = self.cleaned_data
        weight = filled["weight"]
        return None if weight is None else Step(weight, filled["hold"], filled["samples"])


class RestForm(forms.Form):
    """What a plan has beside its steps."""

    ramp_s = SpanField(
        label="After each change", help_text="The time in which new replicas fill up: its requests do not count."
    )
    bake_100_s = SpanField(label="Watched at 100 %")
    keep_previous_s = SpanField(
        label="The version before is kept", help_text="Asleep in memory, so that going back loads nothing."
    )


class CandidateForm(forms.Form):
    """What the deployment goes to."""

    version_id = forms.ChoiceField(label="Candidate")

    def __init__(self, choices: Iterable[tuple[str, str]], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        field = self.fields["version_id"]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared above
        field.choices = list(choices)


class PlanForms:
    """All forms of a new rollout as one: what was sent, else a preset.

    Args:
        choices: the versions that can be chosen, by id, with their names.
        data: what was sent; None begins with the usual plan.
        version_id: what is chosen at first.
    """

    def __init__(
        self, choices: Sequence[tuple[str, str]], data: Mapping[str, Any] | None = None, version_id: str = ""
    ) -> None:
        sent = data or {}
        fresh = sent.get("preset", "") if sent.get("preset", "") in PRESETS else "" if sent else USUAL
        self.is_fresh = bool(fresh)
        self.preset = fresh or (sent["of"] if sent.get("of") in PRESETS else USUAL)
        _, self.meaning, plan = PRESETS[self.preset]
        usual: dict[str, Any] = {"use_required_attribute": False}
        self.candidate = CandidateForm(choices, data, initial={"version_id": version_id}, **usual)
        self.rest = RestForm(None if fresh else data, initial=_rest(plan), **usual)
        self.num_rows = len(plan.steps) + 1 if fresh else _number(sent.get("rows"), 1, MAX_STEPS)
        if "more" in sent:
            self.num_rows = min(MAX_STEPS, self.num_rows + 1)
        steps = [_step(step) for step in plan.steps] if fresh else []
        self.steps = [
            StepForm(
                None if fresh else data,
                initial=steps[number] if number < len(steps) else {},
                prefix=f"step{number}",
                **usual,
            )
            for number in range(self.num_rows)
        ]
        if "more" in sent:
            self.steps[-1].fields["weight"].widget.attrs["autofocus"] = True
        asked = [number for number, step in enumerate(plan.steps) if step.weight == plan.approval_at]
        self.approval = asked[0] if fresh else _number(sent.get("approval"), 0, MAX_STEPS)
        self.faults: list[str] = []

    @property
    def may_grow(self) -> bool:
        """Whether there can be one more row."""
        return self.num_rows < MAX_STEPS

    @property
    def rows(self) -> list[tuple[int, StepForm, bool]]:
        """Each row with its number, and whether a person is asked after it."""
        return [(number, form, number == self.approval) for number, form in enumerate(self.steps)]

    @property
    def every_fault(self) -> list[str]:
        """What is wrong, a line each, for where the fields are not shown beside it."""
        named = [("", self.rest), *((f"Step {number + 1}: ", form) for number, form in enumerate(self.steps))]
        return self.faults + [
            f"{where}{form.fields[name].label}: {reason}"
            for where, form in named
            for name, reasons in form.errors.items()
            for reason in reasons
        ]

    def is_valid(self) -> bool:
        """Say whether every form is."""
        return all([form.is_valid() for form in (self.candidate, self.rest, *self.steps)])  # noqa: C419 - each shows its faults

    def plan(self) -> Plan:
        """Return the plan that valid forms describe; its bounds are for the service to check.

        Raises:
            Invalid: no person is asked after any of its steps.
        """
        rows = [form.step() for form in self.steps]
        asked = rows[self.approval] if self.approval < len(rows) else None
        if asked is None:
            raise Invalid("Choose the step after which a person approves.")
        return Plan(
            steps=tuple(row for row in rows if row is not None),
            approval_at=asked.weight,
            judge=PRESETS[self.preset][2].judge,
            **self.rest.cleaned_data,
        )

    def drafted(self) -> Plan | None:
        """Return the plan as it stands, sent or not; None where it is none or out of bounds: its faults say why."""
        if self.is_fresh:
            return PRESETS[self.preset][2]
        if not all(form.is_valid() for form in (self.rest, *self.steps)):
            return None
        try:
            plan = self.plan()
            bounds.refuse(plan_faults(plan))
        except Invalid as error:
            self.show(error)
            return None
        return plan

    def show(self, error: Invalid) -> None:
        """Attach each fault that the service found to the field it came from, the others to the steps."""
        for name, reason in (error.fields or {"": error.message}).items():
            if name in self.rest.fields:
                if reason not in self.rest.errors.get(name, ()):
                    self.rest.add_error(name, reason)
            elif name == "candidate_version_id":
                self.candidate.add_error("version_id", reason)
            elif (told := _as_labelled(reason)) not in self.faults:
                self.faults.append(told)


def _as_labelled(reason: str) -> str:
    """Return a fault of a plan with what its fields are called here."""
    for field, label in _LABELS.items():
        reason = reason.replace(field, label)
    return reason


def _rest(plan: Plan) -> dict[str, int]:
    return {name: getattr(plan, name) for name in RestForm.base_fields}


def _step(step: Step) -> dict[str, int]:
    return {"weight": step.weight, "hold": step.hold_s, "samples": step.min_samples}


def _number(text: Any, least: int, most: int) -> int:  # noqa: ANN401 - what was sent
    found = int(text) if isinstance(text, str) and text.isdecimal() and len(text) < _ROW_DIGITS else most
    return max(least, min(most, found))
