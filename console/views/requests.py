"""Requests: found by what they were, and each with where its time went."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from console import attempts, waterfall
from console.access import member_page, platform_page
from console.choices import chosen
from console.error_words import meaning
from console.views.playground import price_at
from controlplane.deployments import selectors as deployments
from controlplane.deployments.selectors import DeploymentName
from controlplane.metering import selectors as metering
from controlplane.metering.selectors import Ending
from controlplane.registry import selectors as registry
from dataplane.contracts.catalog import CANDIDATE, PREVIOUS, STABLE
from dataplane.contracts.ids import Kind, is_id
from tenants import selectors as tenants
from tenants.actor import Actor
from tenants.errors import NotFound
from tenants.roles import Permission

RANGES = {
    "1h": ("1 h", timedelta(hours=1)),
    "24h": ("24 h", timedelta(hours=24)),
    "7d": ("7 days", timedelta(days=7)),
    "30d": ("30 days", timedelta(days=30)),
    "all": ("All", None),
}
ANY = ""
ENDINGS = {
    Ending.OK.value: "Went well",
    Ending.FAILED.value: "Failed",
    Ending.REFUSED.value: "Refused",
    Ending.RUNNING.value: "Running",
}
ARMS = {STABLE: "Stable", CANDIDATE: "Candidate", PREVIOUS: "Previous"}
PLAYGROUND = "Playground"
_PAGE_ROWS = 50
_ID_CHARS = 40
_LOOKUP_CHARS = 8
"""The end of a key's prefix, by which two of one name are told apart."""


@dataclass(frozen=True, slots=True)
class Names:
    """What people call the ids of requests: deployments, (model, number) of versions, (name, prefix) of keys."""

    deployments: Mapping[str, DeploymentName] = field(default_factory=dict)
    versions: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    keys: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def model(self, deployment_id: str, version_id: str) -> str:
        """Return what was called: ``chat@3``; of another tenant's deployment the name alone."""
        named = self.deployments.get(deployment_id)
        name = deployment_id if named is None else named.name
        version = self.versions.get(version_id)
        return name if version is None else f"{name}@{version[1]}"

    def version(self, version_id: str) -> str:
        """Return a version as the usage page calls it."""
        found = self.versions.get(version_id)
        return version_id if found is None else f"{found[0]} v{found[1]}"

    def key(self, key_id: str) -> str:
        """Return what a key is recognised by."""
        found = self.keys.get(key_id)
        return key_id if found is None else found[1] or PLAYGROUND


@require_GET
@member_page(Permission.REQUESTS_READ)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List the tenant's requests; an id that is searched for leads to its page."""
    return _index(request, actor, Names(deployments.deployment_names(actor=actor), *_names(actor)))


@require_GET
@platform_page(Permission.REQUESTS_READ)
def platform_index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List every tenant's requests: an id is all that somebody who asks for help may have."""
    return _index(request, actor, None)


def _index(request: HttpRequest, actor: Actor, names: Names | None) -> HttpResponse:
    sought = request.GET.get("id", "").strip()[:_ID_CHARS]
    if sought and _exists(actor, sought):
        return redirect(detail_url(actor, sought))
    context = {**listed(request, actor, names), "sought": sought}
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/requests_live.html" if partial else "console/pages/requests.html", context)


def listed(request: HttpRequest, actor: Actor, names: Names | None, deployment_id: str = "") -> dict[str, Any]:
    """Return a page of requests as the URL chooses them, and the choices.

    Args:
        request: whose URL.
        actor: who looks.
        names: what to call everything, which is what can be chosen, too; None: look up what the rows name.
        deployment_id: the one whose page it is; empty where the URL chooses.
    """
    choices = _choices(names or Names())
    picked = {name: chosen(request, name, {ANY: "", **options}, ANY) for name, (_, options) in choices.items()}
    if deployment_id:
        choices.pop("deployment", None)
        picked["deployment"] = deployment_id
    chosen_range = chosen(request, "range", RANGES, "7d")
    _, span = RANGES[chosen_range]
    before = request.GET.get("before", "")
    rows = metering.list_requests(
        actor=actor,
        limit=_PAGE_ROWS + 1,
        before=before if is_id(before, Kind.REQUEST) else None,
        deployment_id=picked.get("deployment") or None,
        version_id=picked.get("version") or None,
        key_id=picked.get("key") or None,
        arm=picked["arm"] or None,
        ending=Ending(picked["outcome"]) if picked["outcome"] else None,
        since=None if span is None else timezone.now() - span,
    )
    shown = rows[:_PAGE_ROWS]
    known = names or _names_of(actor, shown)
    return {
        "lines": [(row, known.model(row.deployment_id, row.version_id), known.key(row.key_id)) for row in shown],
        "choices": [(name, label, options, picked[name]) for name, (label, options) in choices.items()],
        "chosen_range": chosen_range,
        "ranges": {name: words for name, (words, _) in RANGES.items()},
        "is_narrowed": any(picked[name] for name in choices) or chosen_range != "all" or bool(before),
        "is_first_page": not before,
        "older": shown[-1].request_id if len(rows) > _PAGE_ROWS else None,
        "is_priced": bool(metering.list_prices(actor=actor)),
    }


def _choices(names: Names) -> dict[str, tuple[str, dict[str, str]]]:
    """Return what a list can be narrowed by: the URL's name of it, its label, and its values with their words."""
    found: dict[str, tuple[str, dict[str, str]]] = {
        "deployment": ("Every deployment", {pk: _named(each) for pk, each in names.deployments.items()}),
        "version": ("Every version", {pk: names.version(pk) for pk in names.versions}),
        "key": ("Every key", {pk: f"{name} {prefix[-_LOOKUP_CHARS:]}" for pk, (name, prefix) in names.keys.items()}),
        "arm": ("Every arm", dict(ARMS)),
        "outcome": ("Every outcome", dict(ENDINGS)),
    }
    return {name: choice for name, choice in found.items() if choice[1]}


def _named(deployment: DeploymentName) -> str:
    return f"{deployment.name} (deleted)" if deployment.is_deleted else deployment.name


def _names(actor: Actor) -> tuple[Mapping[str, tuple[str, int]], Mapping[str, tuple[str, str]]]:
    return registry.version_labels(actor=actor), tenants.key_labels(actor=actor)


def names_in(actor: Actor, summary: deployments.DeploymentSummary) -> Names:
    """Return the names that the list of one deployment needs."""
    named = DeploymentName(summary.name, summary.is_own, is_deleted=False)
    return Names({summary.deployment.id: named}, *_names(actor))


def _names_of(actor: Actor, rows: list[Any]) -> Names:
    """Return the names of what these requests were about, whose tenants may be many."""
    return Names(
        deployments.deployment_names(actor=actor, deployment_ids={row.deployment_id for row in rows}),
        registry.version_labels(actor=actor, version_ids={row.version_id for row in rows}),
        tenants.key_labels(actor=actor, key_ids={row.key_id for row in rows}),
    )


def _exists(actor: Actor, request_id: str) -> bool:
    if not is_id(request_id, Kind.REQUEST):
        return False
    try:
        metering.get_request(actor=actor, request_id=request_id)
    except NotFound:
        return False
    return True


def detail_url(actor: Actor, request_id: str) -> str:
    """Return the address of a request's page, where the actor reads it."""
    if actor.is_platform:
        return reverse("console:platform-request", args=[request_id])
    return reverse("console:request", args=[actor.tenant.slug, request_id])


@require_GET
@member_page(Permission.REQUESTS_READ)
def detail(request: HttpRequest, actor: Actor, request_id: str) -> HttpResponse:
    """Show one request."""
    return _detail(request, actor, request_id)


@require_GET
@platform_page(Permission.REQUESTS_READ)
def platform_detail(request: HttpRequest, actor: Actor, request_id: str) -> HttpResponse:
    """Show one request of any tenant."""
    return _detail(request, actor, request_id)


def _detail(request: HttpRequest, actor: Actor, request_id: str) -> HttpResponse:
    found = metering.get_request(actor=actor, request_id=request_id)
    row = found.row
    names = _names_of(actor, [row])
    tries = attempts.attempts(found.records)
    context = {
        "row": row,
        "model": names.model(row.deployment_id, row.version_id),
        "version": names.version(row.version_id),
        "deployment": names.deployments.get(row.deployment_id),
        "key": names.key(row.key_id),
        "key_name": names.keys.get(row.key_id, ("", ""))[0],
        "phases": row.known_phases,
        "attempts": [(each, meaning(each.error_code)) for each in tries],
        "error": meaning(row.error_code),
        "fall": waterfall.waterfall(_measured(row, tries)),
        "legend": waterfall.LEGEND,
        "prices": price_at(metering.list_prices(actor=actor), row.deployment_id, row.started_at),
        "is_over": row.ended_at is not None,
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/request_live.html" if partial else "console/pages/request.html", context)


def _measured(row: Any, tries: list[attempts.Attempt]) -> waterfall.Measured:  # noqa: ANN401 - a usage row
    last = tries[-1] if tries else None
    return waterfall.Measured(
        phases=row.known_phases,
        earlier_ms=tuple(each.duration_ms for each in tries[:-1]),
        ttft_ms=last.ttft_ms if last else None,
        duration_ms=row.duration_ms,
        reached=last is None or bool(last.replica_id),
    )
