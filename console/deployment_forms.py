"""The forms of a deployment: how many replicas, what it does when idle, when it is kept ready, how the engine runs."""

from collections.abc import Iterable
from typing import Any

from django import forms

from console.idle import DAYS, clock, span
from dataplane.contracts import precision
from dataplane.contracts.catalog import KeepWarm
from tenants.errors import Invalid

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 24 * 3600
_IDLE_CHOICES_S = (
    _MINUTE_S, 5 * _MINUTE_S, 15 * _MINUTE_S, _HOUR_S, 4 * _HOUR_S, 12 * _HOUR_S, _DAY_S, 3 * _DAY_S, 7 * _DAY_S,
)  # fmt: skip
_WAIT_CHOICES_S = (0, 10, 30, 60, 120, 300)
_DEVICES = {"auto": "Whatever the node has", "cpu": "CPU", "cuda": "GPU"}
_DTYPES = {
    "fp32": "fp32, as exact as it gets",
    "fp16": "fp16, half the memory, finer steps",
    "bf16": "bf16, half the memory, wide range",
    "int8": "int8, a quarter of the memory, answers differ slightly",
    "int4": "int4, a sixth of the memory, answers get worse",
}
_KV_DTYPES = {
    "auto": "As the weights, fp16 beside int8 and int4",
    "fp32": "fp32, as exact as it gets",
    "fp16": "fp16, half the memory, finer steps",
    "bf16": "bf16, half the memory, wide range",
    "int8": "int8, a quarter of the memory, answers differ slightly",
}
_DAY_MINUTES = 24 * 60
SPARE_WINDOWS = 1
"""Empty rows under the times that are kept ready: filled in, it is one more."""


class SecondsField(forms.TypedChoiceField):
    """A time that is chosen in words; one that is set already can be kept, whatever it is.

    Args:
        choices_s: the times that are offered.
        never: the words for no time at all; without them there is always one.
    """

    def __init__(self, choices_s: Iterable[int], *, never: str = "", **options: Any) -> None:
        self._offered, self._never = tuple(choices_s), never
        super().__init__(coerce=int, empty_value=None, required=not never, **options)
        self.offer(None)

    def offer(self, current_s: int | None) -> None:
        """Make sure that ``current_s`` is among the choices."""
        times = sorted({*self._offered, *([] if current_s is None else [current_s])})
        first = [("", self._never)] if self._never else []
        self.choices = [*first, *((str(time), f"after {span(time)}" if self._never else span(time)) for time in times)]


class ReplicasForm(forms.Form):
    """How many replicas there are."""

    min_replicas = forms.IntegerField(
        label="Kept ready at least", help_text="0 lets it rest altogether. What is kept ready never steps down."
    )
    max_replicas = forms.IntegerField(label="At most")


class IdleForm(forms.Form):
    """How an idle deployment steps down, and how long a call waits for it."""

    asleep_after_s = SecondsField(
        _IDLE_CHOICES_S, never="never", label="Asleep", help_text="Weights in host memory: the fastest to wake."
    )
    warm_after_s = SecondsField(
        _IDLE_CHOICES_S, never="never", label="Warm", help_text="Weights on disk, a process from the pool waits."
    )
    disk_after_s = SecondsField(
        _IDLE_CHOICES_S, never="never", label="On disk", help_text="Nothing runs, and nothing is held in memory."
    )
    cold_wait_s = SecondsField(
        _WAIT_CHOICES_S,
        label="A call waits for a start up to",
        help_text="Then it is a 503 that says when to come again. 0 s refuses at once.",
    )


class EngineForm(forms.Form):
    """How each replica runs. A change replaces the replicas one by one."""

    dtype = forms.ChoiceField(
        label="Precision",
        choices=[(name, _DTYPES[name]) for name in precision.WEIGHTS],
        help_text="Of the weights. Those that were uploaded as int8 or int4 stay so.",
    )
    max_model_len = forms.IntegerField(
        label="Context, tokens", required=False, help_text="Empty is as much as the model has."
    )
    max_num_seqs = forms.IntegerField(label="Requests at a time, each replica")
    kv_memory_mb = forms.IntegerField(label="KV memory of a replica, MiB")
    kv_dtype = forms.ChoiceField(
        label="Precision of keys and values", choices=[(name, _KV_DTYPES[name]) for name in precision.KV_CHOICES]
    )
    device = forms.ChoiceField(label="Device", choices=list(_DEVICES.items()))


class WindowForm(forms.Form):
    """A time of the week at which replicas are kept ready. Without a day it is none."""

    days = forms.TypedMultipleChoiceField(
        choices=[(str(day), name) for day, name in enumerate(DAYS)],
        coerce=int,
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    begin = forms.TimeField(label="From, UTC", required=False, widget=forms.TimeInput(attrs={"type": "time"}))
    end = forms.TimeField(label="To, UTC", required=False, widget=forms.TimeInput(attrs={"type": "time"}))
    replicas = forms.IntegerField(label="Replicas", min_value=1, required=False)

    def clean(self) -> dict[str, Any]:
        """Want the rest where there is a day."""
        filled: dict[str, Any] = super().clean() or self.cleaned_data
        if filled.get("days"):
            for name in ("begin", "end", "replicas"):
                if filled.get(name) is None and name not in self.errors:
                    self.add_error(name, "This is needed where a day is chosen.")
        return filled

    def window(self) -> KeepWarm | None:
        """Return the time that a valid form describes; to 00:00 is to the end of the day."""
        filled = self.cleaned_data
        if not filled["days"]:
            return None
        begin, end = (filled[name].hour * 60 + filled[name].minute for name in ("begin", "end"))
        days, replicas = tuple(filled["days"]), filled["replicas"]
        return KeepWarm(days=days, from_minute=begin, to_minute=end or _DAY_MINUTES, min_replicas=replicas)


class SettingsForms:
    """All forms of the settings as one: what was sent, else what is set.

    Args:
        current: the values that are set, by field.
        windows: the times that are kept ready now.
        data: what was sent.
    """

    def __init__(self, current: dict[str, Any], windows: Iterable[KeepWarm], data: Any = None) -> None:  # noqa: ANN401 - a QueryDict
        self.replicas = ReplicasForm(data, initial=current, use_required_attribute=False)
        self.idle = IdleForm(data, initial=current, use_required_attribute=False)
        self.engine = EngineForm(data, initial=current, use_required_attribute=False)
        for name, field in self.idle.fields.items():
            assert isinstance(field, SecondsField)  # noqa: S101 - declared above
            field.offer(current[name])
        initial: list[dict[str, Any]] = [_initial(window) for window in windows] + [{}] * SPARE_WINDOWS
        self.windows = [
            WindowForm(data, initial=each, prefix=f"window{number}", use_required_attribute=False)
            for number, each in enumerate(initial)
        ]
        self._all = (self.replicas, self.idle, self.engine, *self.windows)

    def is_valid(self) -> bool:
        """Say whether every form is."""
        return all([form.is_valid() for form in self._all])  # noqa: C419 - each of them shows its faults

    def values(self) -> dict[str, Any]:
        """Return what was sent, by the names of the settings."""
        windows = [form.window() for form in self.windows]
        return {
            **self.replicas.cleaned_data,
            **self.idle.cleaned_data,
            **self.engine.cleaned_data,
            "schedules": [window for window in windows if window is not None],
        }

    def show(self, error: Invalid) -> None:
        """Attach each fault that the service found to the field it came from, the others to the first form."""
        for name, reason in error.fields.items():
            owner = next((form for form in self._all if name in form.fields), self.replicas)
            owner.add_error(name if name in owner.fields else None, reason)
        if not error.fields:
            self.replicas.add_error(None, error.message)


def _initial(window: KeepWarm) -> dict[str, Any]:
    return {
        "days": [str(day) for day in window.days],
        "begin": clock(window.from_minute),
        "end": clock(window.to_minute % _DAY_MINUTES),
        "replicas": window.min_replicas,
    }
