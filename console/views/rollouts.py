"""Rollouts: all of a tenant or of the platform, and one with its stages, its verdicts and what can be done."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from console import charts, rollout_words, stepper
from console.access import member_page, platform_page
from console.choices import chosen
from console.views.versions import named
from controlplane.deployments import selectors as deployments
from controlplane.rollouts import outlook, plan, selectors, series, services
from controlplane.rollouts.evidence import Point
from controlplane.rollouts.selectors import RolloutStory, RolloutSummary
from controlplane.rollouts.states import LIVE, WEIGHTLESS, Command, RolloutState
from controlplane.rollouts.view import has_weight
from tenants.actor import Actor, require
from tenants.errors import Conflict, Invalid, NotFound
from tenants.roles import Permission
from tenants.selectors import list_tenants

ANY, UNDER_WAY = "any", "live"
STANDINGS = {ANY: "Every state", UNDER_WAY: "Under way"} | {
    state.value: label for state, (label, _) in rollout_words.STATES.items() if state is not RolloutState.SHADOW
}
RANGES = {"rollout": "Whole rollout", "step": "This step", "1h": "1 hour", "24h": "24 hours"}
_SPANS = {"1h": timedelta(hours=1), "24h": timedelta(hours=24)}
MEASURES = (
    ("requests", "Requests", "", 1),
    ("error_rate", "Error rate", "%", 100),
    ("ttft_p95_ms", "First token, p95", "ms", 1),
    ("tpot_p95_ms", "Per output token, p95", "ms", 1),
)
"""What is drawn of both arms: the name of the number, its label, its unit, and what it is multiplied with."""
_REVISION_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Line:
    """A rollout as a list shows it, with the names of its versions and the address of its page."""

    summary: RolloutSummary
    stable: str
    candidate: str
    url: str


@dataclass(frozen=True, slots=True)
class Row:
    """A span of time of a chart: when it began, and (number, words) of each measure, the stable arm's first."""

    at: datetime
    unix_s: int
    values: tuple[tuple[str, str], ...]
    is_empty: bool


def url_of(actor: Actor, rollout_id: str, act: str = "") -> str:
    """Return the address of a rollout's page, or of what is done there, where the actor reads it."""
    name = f"rollout{act}"
    if actor.is_platform:
        return reverse(f"console:platform-{name}", args=[rollout_id])
    return reverse(f"console:{name}", args=[actor.tenant.slug, rollout_id])


def line(actor: Actor, summary: RolloutSummary) -> Line:
    """Return a rollout as a list shows it."""
    rollout = summary.rollout
    return Line(
        summary, named(rollout.stable_version), named(rollout.candidate_version), url_of(actor, rollout.id)
    )  # fmt: skip


# --- lists


@require_GET
@member_page(Permission.ROLLOUTS_READ)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List the tenant's rollouts."""
    return _index(request, actor, {})


@require_GET
@platform_page(Permission.PLATFORM_ROLLOUTS)
def platform_index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List every tenant's rollouts, beside the switch that freezes them all."""
    slugs = [tenant.slug for tenant, _ in list_tenants(actor=actor)]
    return _index(request, actor, {ANY: "Every tenant"} | {slug: slug for slug in slugs})


def _index(request: HttpRequest, actor: Actor, tenants: Mapping[str, str]) -> HttpResponse:
    standing = chosen(request, "state", STANDINGS, ANY)
    slug = chosen(request, "tenant", tenants, ANY)
    found = selectors.list_rollouts(
        actor=actor,
        live_only=standing == UNDER_WAY,
        state=None if standing in (ANY, UNDER_WAY) else RolloutState(standing),
        slug=None if slug == ANY else slug,
    )
    context = {
        "lines": [line(actor, summary) for summary in found],
        "freeze": selectors.get_freeze(actor=actor),
        "standings": STANDINGS,
        "picked_standing": standing,
        "tenants": tenants,
        "picked_tenant": slug,
        "is_narrowed": (standing, slug) != (ANY, ANY),
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/rollouts_live.html" if partial else "console/pages/rollouts.html", context)


def of_deployment(actor: Actor, deployment_id: str) -> dict[str, Any]:
    """Return what the tab of a deployment shows: the rollout under way, those before it, and whether all are frozen."""
    found = [line(actor, each) for each in selectors.list_rollouts(actor=actor, deployment_id=deployment_id)]
    return {
        "live_line": next((each for each in found if each.summary.state in LIVE), None),
        "lines": [each for each in found if each.summary.state not in LIVE],
        "freeze": selectors.get_freeze(actor=actor),
        "may_roll_out": actor.may(Permission.ROLLOUTS_WRITE),
    }


# --- one rollout


@require_http_methods(["GET", "POST"])
@member_page(Permission.ROLLOUTS_READ)
def detail(request: HttpRequest, actor: Actor, rollout_id: str) -> HttpResponse:
    """Show one rollout; do what a button of its page says."""
    return _detail(request, actor, rollout_id)


@require_http_methods(["GET", "POST"])
@platform_page(Permission.PLATFORM_ROLLOUTS)
def platform_detail(request: HttpRequest, actor: Actor, rollout_id: str) -> HttpResponse:
    """Do the same with a rollout of any tenant."""
    return _detail(request, actor, rollout_id)


def _detail(request: HttpRequest, actor: Actor, rollout_id: str) -> HttpResponse:
    if request.method == "GET":
        return as_it_is(request, actor, rollout_id)
    require_writer(actor)
    act = _ACTS.get(request.POST.get("command", ""))
    if act is None:
        raise Invalid("A rollout is started, paused, resumed or given up; say which.")
    command, done = act
    try:
        command(actor=actor, rollout_id=rollout_id, expected_revision=seen_revision(request))
    except Conflict as error:
        return as_it_is(request, actor, rollout_id, fault=error.message)
    messages.success(request, done)
    return redirect(url_of(actor, rollout_id))


_ACTS: dict[str, tuple[Callable[..., Any], str]] = {
    Command.START: (services.start_rollout, "The rollout has started."),
    Command.PAUSE: (services.pause_rollout, "The rollout is paused: weights stay as they are, and it is watched."),
    Command.RESUME: (services.resume_rollout, "The rollout goes on where it was paused."),
    Command.ABORT: (services.abort_rollout, "The rollout is given up. Callers noticed nothing of it."),
}
"""What needs no page of its own, and what is said when it is done."""


def require_writer(actor: Actor) -> None:
    """Refuse who may not change rollouts.

    Raises:
        Forbidden: the actor may not.
    """
    if not actor.may(Permission.PLATFORM_ROLLOUTS):
        require(actor, Permission.ROLLOUTS_WRITE)


def seen_revision(request: HttpRequest) -> int:
    """Return the revision that a form carries: what its sender has seen. 0, which none has, where it carries none."""
    text = request.POST.get("revision", "")
    return int(text) if text.isdecimal() and len(text) < _REVISION_DIGITS else 0


def as_it_is(request: HttpRequest, actor: Actor, rollout_id: str, *, fault: str = "") -> HttpResponse:
    """Show a rollout as it is now; with a ``fault`` as the answer to who has asked for what it is past."""
    context = {**_about(request, actor, selectors.get_rollout(actor=actor, rollout_id=rollout_id)), "fault": fault}
    if request.method == "GET" and request.headers.get("HX-Request"):
        return render(request, "console/parts/rollout_live.html", context)
    return render(request, "console/pages/rollout.html", context, status=409 if fault else 200)


def _about(request: HttpRequest, actor: Actor, story: RolloutStory) -> dict[str, Any]:
    rollout, view = story.summary.rollout, story.summary.rollout.view
    judged = next((event for event in reversed(story.events) if event.evidence), None)
    shown: dict[str, Any] = {
        **facts(actor, story.summary),
        "events": story.events[::-1],
        "freeze": selectors.get_freeze(actor=actor),
        "stages": stepper.stages(view, story.events),
        "judged": judged,
        "gates": rollout_words.gate_lines(judged.evidence) if judged else [],
        "sha256": series.evidence_sha256(judged) if judged else "",
        "memory": next((event.cause for event in story.events if event.old == RolloutState.PREFLIGHT), ""),
        "refusal": selectors.approval_refusal(actor, rollout),
        "is_over": view.state not in LIVE and view.previous_until is None,
        "may_read_audit": actor.may(Permission.AUDIT_READ),
    }
    if view.state is RolloutState.DRAFT:
        ahead = outlook.outlook(actor=actor, deployment_id=rollout.deployment_id, plan=view.plan)
        return shown | {"ahead": ahead, "plan_words": plan.in_words(view.plan)}
    return shown | _measured(request, actor, story) | {"arms": _replicas(actor, rollout)}


def facts(actor: Actor, summary: RolloutSummary) -> dict[str, Any]:
    """Return what every page about one rollout needs."""
    rollout = summary.rollout
    stable, candidate = named(rollout.stable_version), named(rollout.candidate_version)
    return {
        "summary": summary,
        "rollout": rollout,
        "stable": stable,
        "candidate": candidate,
        "here": url_of(actor, rollout.id),
        "approve_url": url_of(actor, rollout.id, "-approve"),
        "roll_back_url": url_of(actor, rollout.id, "-roll-back"),
        "may_roll_back": Command.ROLL_BACK in summary.commands,
        "weights": charts.meter(
            [(f"Stable {stable}", 100 - summary.weight), (f"Candidate {candidate}", summary.weight)], 100, series=(2, 1)
        ),
    }


def _measured(request: HttpRequest, actor: Actor, story: RolloutStory) -> dict[str, Any]:
    """Return both arms over the time that the URL chooses, and what they came to in this step."""
    rollout = story.summary.rollout
    begun = next((event.at for event in story.events if event.weight), None)
    picked = chosen(request, "range", RANGES, "rollout")
    shown: dict[str, Any] = {"ranges": RANGES, "chosen_range": picked, "measures": MEASURES, "rows": (), "so_far": None}
    if begun is None:
        return shown
    until = rollout.ended_at
    since = {"rollout": begun, "step": rollout.step_started_at or begun}.get(picked)
    if since is None:
        since = (until or timezone.now()) - _SPANS[picked]
    found = series.progress(actor=actor, rollout=rollout, since=since, until=until)
    needed = rollout.view.here.min_samples if has_weight(rollout.view) else 0
    so_far = series.since_step(actor=actor, rollout=rollout) if needed else None
    return shown | {
        "rows": [_row(stable, candidate) for stable, candidate in zip(found.stable, found.candidate, strict=True)],
        "has_data": any(point.requests for point in (*found.stable, *found.candidate)),
        "so_far": so_far,
        "needed": needed,
        "collected": charts.meter([("Settled", min(so_far[1].requests, needed))], needed) if so_far else None,
    }


def _row(stable: Point, candidate: Point) -> Row:
    values = []
    for name, _, unit, factor in MEASURES:
        for point in (stable, candidate):
            value = getattr(point, name)
            empty = value is None or (name == "requests" and not value)
            number = "" if empty else f"{value * factor:.6g}"
            values.append(
                (number, "–" if empty else f"{number if unit == '' else f'{value * factor:.3g}'} {unit}".strip())
            )
    return Row(stable.at, int(stable.at.timestamp()), tuple(values), not (stable.requests or candidate.requests))


def _replicas(actor: Actor, rollout: Any) -> list[tuple[str, str, Sequence[Any]]]:  # noqa: ANN401 - a row
    """Return of each version what it is here, its name, and its replicas; none where the deployment is gone."""
    try:
        found = deployments.list_replicas(actor=actor, deployment_id=rollout.deployment_id)
    except NotFound:
        found = []
    versions = (("Stable", rollout.stable_version), ("Candidate", rollout.candidate_version))
    return [
        (arm, named(version), [each for each in found if each.report.version_id == version.id])
        for arm, version in versions
    ]


# --- rolling back


@require_http_methods(["GET", "POST"])
@member_page(Permission.ROLLOUTS_WRITE)
def roll_back(request: HttpRequest, actor: Actor, rollout_id: str) -> HttpResponse:
    """Say what a rollback does now, then do it, whatever state it meets."""
    return _roll_back(request, actor, rollout_id)


@require_http_methods(["GET", "POST"])
@platform_page(Permission.PLATFORM_ROLLOUTS)
def platform_roll_back(request: HttpRequest, actor: Actor, rollout_id: str) -> HttpResponse:
    """Do the same with a rollout of any tenant."""
    return _roll_back(request, actor, rollout_id)


def _roll_back(request: HttpRequest, actor: Actor, rollout_id: str) -> HttpResponse:
    if request.method == "GET":
        return _ask_roll_back(request, actor, rollout_id)
    try:
        answer = services.roll_back(actor=actor, rollout_id=rollout_id, reason=request.POST.get("reason", ""))
    except Invalid as error:
        return _ask_roll_back(request, actor, rollout_id, fault=error.message)
    if answer.applied:
        messages.success(request, answer.words)
    else:
        messages.warning(request, f"There was nothing to take back. {answer.words}")
    return redirect(url_of(actor, rollout_id))


def _ask_roll_back(request: HttpRequest, actor: Actor, rollout_id: str, *, fault: str = "") -> HttpResponse:
    summary = selectors.get_rollout(actor=actor, rollout_id=rollout_id).summary
    shown = facts(actor, summary)
    context = {
        **shown,
        "consequence": rollout_words.consequence(
            summary.rollout.view, stable=shown["stable"], candidate=shown["candidate"]
        ),
        "is_weightless": summary.state in WEIGHTLESS,
        "reason": request.POST.get("reason", ""),
        "reason_max_chars": services.REASON_MAX_CHARS,
        "fault": fault,
    }
    return render(request, "console/pages/rollout_roll_back.html", context, status=422 if fault else 200)
