"""Approvals: what waits for a person, by which verdicts, and the word that lets it go on."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from console.access import member_page, platform_page
from console.errors import show_faults
from console.rollout_words import GATES, WAIVERS, GateLine, gate_lines, judged_words
from console.views.rollouts import as_it_is, facts, seen_revision, url_of
from controlplane.rollouts import selectors, series, services
from controlplane.rollouts.gates import NEEDS_WAIVER
from controlplane.rollouts.selectors import RolloutSummary
from controlplane.rollouts.states import RolloutState
from controlplane.rollouts.view import candidate_weight
from tenants.actor import Actor
from tenants.errors import Conflict, Invalid
from tenants.roles import Permission

_STEP_DIGITS = 3


class WaiverForm(forms.Form):
    """For each gate that was not run, why it may be done without.

    Args:
        rollout_id: of which: several stand on one page.
        data: what was sent.
    """

    def __init__(self, rollout_id: str, data: Any = None) -> None:  # noqa: ANN401 - a QueryDict
        super().__init__(data, auto_id=f"{rollout_id}-%s", use_required_attribute=False)
        for gate in NEEDS_WAIVER:
            self.fields[f"waivers.{gate.value}"] = forms.CharField(
                label=f"{GATES[gate][0]}: why it may be done without",
                help_text=WAIVERS[gate],
                required=False,
                max_length=services.REASON_MAX_CHARS,
            )

    def waivers(self) -> dict[str, str]:
        """Return what a valid form says, by gate."""
        return {name.removeprefix("waivers."): why for name, why in self.cleaned_data.items()}


@dataclass(frozen=True, slots=True)
class Ask:
    """What waits for an approval, as a page shows it."""

    facts: dict[str, Any]
    gates: list[GateLine]
    said: str
    refusal: str
    form: WaiverForm


@require_GET
@member_page(Permission.ROLLOUTS_APPROVE)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show what of the tenant's waits."""
    return _index(request, actor)


@require_GET
@platform_page(Permission.PLATFORM_ROLLOUTS)
def platform_index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show what of any tenant's waits."""
    return _index(request, actor)


def _index(request: HttpRequest, actor: Actor) -> HttpResponse:
    pending = selectors.list_pending_approvals(actor=actor)
    judged = series.last_judged(actor=actor, rollout_ids=[each.summary.rollout.id for each in pending])
    context = {
        "asks": [_ask(actor, each.summary, judged.get(each.summary.rollout.id)) for each in pending],
        "freeze": selectors.get_freeze(actor=actor),
    }
    return render(request, "console/pages/approvals.html", context)


def _ask(actor: Actor, summary: RolloutSummary, judged: Any, data: Any = None) -> Ask:  # noqa: ANN401 - a row, a QueryDict
    evidence = judged.evidence if judged is not None else {}
    return Ask(
        facts=facts(actor, summary) | {"takes": _takes(summary)},
        gates=gate_lines(evidence),
        said=judged_words(evidence),
        refusal=selectors.approval_refusal(actor, summary.rollout),
        form=WaiverForm(summary.rollout.id, data),
    )


def _takes(summary: RolloutSummary) -> int:
    """Return the candidate's weight after an approval, in per cent."""
    view = summary.rollout.view
    following = view.plan.steps[view.step + 1 :]
    if view.state is not RolloutState.AWAITING_APPROVAL:
        return candidate_weight(view)
    return following[0].weight if following else 100


@require_http_methods(["GET", "POST"])
@member_page(Permission.ROLLOUTS_APPROVE)
def approve(request: HttpRequest, actor: Actor, rollout_id: str) -> HttpResponse:
    """Show the verdicts and ask for what was not run; then let the rollout go on."""
    return _approve(request, actor, rollout_id)


@require_http_methods(["GET", "POST"])
@platform_page(Permission.PLATFORM_ROLLOUTS)
def platform_approve(request: HttpRequest, actor: Actor, rollout_id: str) -> HttpResponse:
    """Do the same with a rollout of any tenant."""
    return _approve(request, actor, rollout_id)


def _approve(request: HttpRequest, actor: Actor, rollout_id: str) -> HttpResponse:
    story = selectors.get_rollout(actor=actor, rollout_id=rollout_id)
    if story.summary.state is not RolloutState.AWAITING_APPROVAL:
        return as_it_is(request, actor, rollout_id, fault="Nothing waits for an approval here. This is how it stands.")
    judged = next((event for event in reversed(story.events) if event.evidence), None)
    data = request.POST if request.method == "POST" else None
    ask = _ask(actor, story.summary, judged, data)
    if data is not None and ask.form.is_valid():
        try:
            _do_approve(request, actor, rollout_id, ask.form)
        except Invalid as error:
            show_faults(ask.form, error)
        except Conflict as error:
            return as_it_is(request, actor, rollout_id, fault=error.message)
        else:
            messages.success(
                request, f"Approved. {ask.facts['candidate']} takes {ask.facts['takes']} % of the traffic."
            )
            return redirect(url_of(actor, rollout_id))
    context = {"ask": ask, "freeze": selectors.get_freeze(actor=actor), **ask.facts}
    return render(request, "console/pages/rollout_approve.html", context, status=200 if data is None else 422)


def _do_approve(request: HttpRequest, actor: Actor, rollout_id: str, form: WaiverForm) -> None:
    step = request.POST.get("step", "")
    services.approve_rollout(
        actor=actor,
        rollout_id=rollout_id,
        expected_revision=seen_revision(request),
        digest=request.POST.get("digest", ""),
        step=int(step) if step.isdecimal() and len(step) < _STEP_DIGITS else -1,
        waivers=form.waivers(),
    )
