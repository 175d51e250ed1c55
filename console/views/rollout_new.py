"""A new rollout: what a deployment goes to, the plan as rows, and what that means before anything starts."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from console.access import member_page
from console.plan_forms import PRESETS, PlanForms
from console.rollout_words import FITS
from console.views.deployments import about, own
from console.views.rollouts import line
from console.views.versions import named
from controlplane.rollouts import outlook, selectors, services
from controlplane.rollouts.plan import DEFAULT_PLAN, in_words, span
from dataplane.contracts.catalog import STABLE
from dataplane.contracts.ids import Kind, is_id
from tenants.actor import Actor
from tenants.errors import Conflict, Invalid
from tenants.roles import Permission

_DRAFTED = "The rollout is drafted. Nothing changes for callers until it is started."
_REDRAWS = ("preset", "more", "check")
"""Buttons that change the form and nothing else."""


@require_http_methods(["GET", "POST"])
@member_page(Permission.ROLLOUTS_WRITE)
def create(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Ask what to go to and how; say what that means; draft the rollout, and start it where that is asked."""
    if request.method == "POST" and "preview" in request.POST:
        return _preview(request, actor, deployment_id)
    summary = own(actor, deployment_id)
    stable = next(arm.version for arm in summary.arms if arm.name == STABLE)
    versions = outlook.list_candidates(actor=actor, stable=stable)
    choices = [(version.id, named(version)) for version in versions]
    data = request.POST if request.method == "POST" else None
    found = PlanForms(choices, data, request.GET.get("version", ""))
    redraws = data is not None and any(name in data for name in _REDRAWS)
    if data is not None and not redraws and found.is_valid():
        rollout = _drafted(actor, deployment_id, found, supersede=data.get("supersede") == "1")
        if rollout is not None:
            _start(request, actor, rollout) if "start" in data else messages.success(request, _DRAFTED)
            return redirect("console:rollout", tenant=actor.tenant.slug, rollout_id=rollout.id)
    live = selectors.list_rollouts(actor=actor, deployment_id=deployment_id, live_only=True)
    chosen_id = found.candidate["version_id"].value() or next((pk for pk, _ in choices), "")
    context = {
        **about(actor, summary),
        "tab": "rollouts",
        "stable": stable,
        "stable_name": named(stable),
        "has_versions": bool(versions),
        "forms": found,
        "faults": found.faults,
        "presets": PRESETS,
        "live_line": line(actor, live[0]) if live else None,
        "supersedes": data is not None and data.get("supersede") == "1",
        "freeze": selectors.get_freeze(actor=actor),
        **_ahead(actor, deployment_id, found),
        "compare_url": _compare_url(actor, chosen_id, stable.id),
    }
    status = 200 if data is None or redraws else 422
    return render(request, "console/pages/rollout_new.html", context, status=status)


def _drafted(actor: Actor, deployment_id: str, found: PlanForms, *, supersede: bool) -> Any:  # noqa: ANN401 - a row
    """Draft what the forms say and return it; where it is refused, show why at its field and return None."""
    try:
        return services.create_rollout(
            actor=actor,
            deployment_id=deployment_id,
            candidate_version_id=found.candidate.cleaned_data["version_id"],
            plan=found.plan(),
            supersede=supersede,
        )
    except Invalid as error:
        found.show(error)
    except Conflict as error:
        found.candidate.add_error(None, error.message)
    return None


def _start(request: HttpRequest, actor: Actor, rollout: Any) -> None:  # noqa: ANN401 - a row
    """Start what was just drafted; where that is refused, it stays a draft."""
    try:
        services.start_rollout(actor=actor, rollout_id=rollout.id, expected_revision=rollout.revision)
    except Conflict as error:
        messages.warning(request, f"The rollout is drafted, and not started. {error.message}")
    else:
        messages.success(request, "The rollout has started.")


def _preview(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Say what the form means as it stands, capacity included; nothing is checked but what would be refused."""
    version_id = request.POST.get("version_id", "")
    found = PlanForms([(version_id, version_id)], request.POST)
    plan = found.drafted()
    fit = outlook.fit(
        actor=actor, deployment_id=deployment_id, candidate_version_id=version_id, plan=plan or DEFAULT_PLAN
    )  # fmt: skip
    context = {
        **_ahead(actor, deployment_id, found),
        "faults": found.every_fault,
        "is_asked": True,
        "fit": fit,
        "fit_badge": FITS.get(fit.outcome) if fit is not None else None,
        "compare_url": _compare_url(actor, version_id, request.POST.get("stable", "")),
    }
    return render(request, "console/parts/rollout_preview.html", context)


def _ahead(actor: Actor, deployment_id: str, found: PlanForms) -> dict[str, Any]:
    """Return what the plan says and how long it takes: of a deployment that was found to be the actor's own."""
    plan = found.drafted()
    if plan is None:
        return {"plan_words": (), "ahead": None}
    ahead = outlook.outlook(actor=actor, deployment_id=deployment_id, plan=plan)
    until_asked = []
    for step, time in zip(plan.steps, ahead.times, strict=True):
        until_asked.append(time.seconds)
        if step.weight == plan.approval_at:
            break
    never = any(seconds is None for seconds in until_asked)
    return {
        "plan_words": in_words(plan),
        "ahead": ahead,
        "pace": f"{ahead.requests_per_minute:.3g}",
        "total": "" if never else span(sum(seconds or 0 for seconds in until_asked)),
    }


def _compare_url(actor: Actor, version_id: str, stable_id: str) -> str:
    """Return where the two versions are compared."""
    if not (is_id(version_id, Kind.VERSION) and is_id(stable_id, Kind.VERSION)):
        return ""
    return f"{reverse('console:version', args=[actor.tenant.slug, version_id])}?tab=compare&since={stable_id}"
