"""How rollouts go, as pages show it: those under way, what was judged last, and both arms over time."""

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
from django.utils import timezone

from controlplane.rollouts import evidence, words
from controlplane.rollouts.evidence import Point
from controlplane.rollouts.models import Rollout, RolloutEvent
from controlplane.rollouts.states import LIVE, RolloutState
from controlplane.rollouts.view import candidate_weight
from tenants.actor import Actor, reading_as, require
from tenants.roles import Permission

MOST_BUCKETS = 48
_WIDTHS_S = (
    5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 345_600, 604_800
)  # fmt: skip
_LEAST_SPAN = timedelta(seconds=_WIDTHS_S[0])


@dataclass(frozen=True, slots=True)
class InFlight:
    """A rollout that is not over, in short; ``rollout`` has its deployment and its candidate with its model."""

    rollout: Rollout
    state: RolloutState
    weight: int
    waits_for: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Both arms over the same time, as many points of each, and all of their requests since the step began."""

    stable: tuple[Point, ...]
    candidate: tuple[Point, ...]


def list_in_flight(*, actor: Actor) -> list[InFlight]:
    """Return what is under way, the longest first: of the tenant, or for the platform of all. One query."""
    require(actor, Permission.ROLLOUTS_READ)
    with reading_as(actor):
        rows = Rollout.objects.all() if actor.is_platform else Rollout.objects.for_tenant(actor.tenant)
        live = rows.filter(state__in=LIVE).select_related("deployment", "candidate_version__model")
        return [_in_flight(rollout) for rollout in live.order_by("created_at", "id")]


def _in_flight(rollout: Rollout) -> InFlight:
    view = rollout.view
    return InFlight(rollout, view.state, candidate_weight(view), words.waits_for(view))


def progress(*, actor: Actor, rollout: Rollout, since: datetime, until: datetime | None = None) -> Progress:
    """Return how the arms of a rollout did that the actor has read, in at most ``MOST_BUCKETS`` spans of time.

    Args:
        actor: who looks.
        rollout: which.
        since: from when, or a little before: a span has an even width.
        until: to when exactly; None is the end of the span that is not over yet, so that the others stay as they are
            however often it is asked.
    """
    return _between(actor, rollout, *grid(since, until, timezone.now()))


def grid(since: datetime, until: datetime | None, now: datetime) -> tuple[datetime, datetime, int]:
    """Return from when to when, and in how many spans of time; pure. See :func:`progress`."""
    end = until or now
    length_s = max((end - since).total_seconds(), 1.0)
    # One more than fits: neither end need be where a span begins.
    width_s = next((width for width in _WIDTHS_S if length_s / width <= MOST_BUCKETS - 1), length_s)
    width = timedelta(seconds=width_s)
    if until is None:
        end = datetime.fromtimestamp(math.ceil(now.timestamp() / width_s) * width_s, UTC)
    count = min(MOST_BUCKETS, math.ceil((end - since) / width)) or 1
    return end - count * width, end, count


def since_step(*, actor: Actor, rollout: Rollout) -> tuple[Point, Point] | None:
    """Return what the stable arm and the candidate came to since the step began; None where none has."""
    if rollout.step_started_at is None:
        return None
    end = max(rollout.ended_at or timezone.now(), rollout.step_started_at + _LEAST_SPAN)
    whole = _between(actor, rollout, rollout.step_started_at, end, 1)
    return whole.stable[0], whole.candidate[0]


def _between(actor: Actor, rollout: Rollout, since: datetime, until: datetime, buckets: int) -> Progress:
    require(actor, Permission.ROLLOUTS_READ)
    found = evidence.arm_series(deployment_id=rollout.deployment_id, since=since, until=until, buckets=buckets)
    return Progress(found["stable"], found["candidate"])


def last_judged(*, actor: Actor, rollout_ids: Collection[str]) -> dict[str, RolloutEvent]:
    """Return for each rollout the last transition that has evidence."""
    require(actor, Permission.ROLLOUTS_READ)
    with reading_as(actor):
        judged = RolloutEvent.objects.filter(rollout_id__in=rollout_ids).exclude(evidence={})
        newest = judged.order_by("rollout_id", "-sequence").distinct("rollout_id")
        return {event.rollout_id: event for event in newest}


def evidence_sha256(event: RolloutEvent) -> str:
    """Return the digest of what the journal keeps: that of the audit row, where neither was changed."""
    return hashlib.sha256(msgspec.json.encode(event.evidence, order="deterministic")).hexdigest()
