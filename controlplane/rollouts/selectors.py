"""Rollouts as the actor may see them."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from controlplane.rollouts.models import Rollout, RolloutEvent, RolloutFreeze
from controlplane.rollouts.states import LIVE, Command, RolloutState
from tenants.actor import Actor, reading_as, require
from tenants.errors import NotFound
from tenants.roles import Permission

PAGE_ROWS = 100


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """A rollout as a list shows it.

    Args:
        rollout: the row; ``deployment``, both versions with their models, and ``tenant`` are loaded.
        state: where it is.
        weight: the candidate's part of the traffic, in per cent.
        waits_for: what it waits for and until when, or how it ended, in words.
        commands: what the actor may ask of it now.
    """

    rollout: Rollout
    state: RolloutState
    weight: int
    waits_for: str
    commands: frozenset[Command]


@dataclass(frozen=True, slots=True)
class RolloutStory:
    """A rollout with its journal, oldest first."""

    summary: RolloutSummary
    events: tuple[RolloutEvent, ...]


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A rollout that waits for a person.

    Args:
        summary: it.
        missing: the gates that were not run: an approval names each with a reason to do without.
        refusal: why this actor may not approve it; empty where it may.
    """

    summary: RolloutSummary
    missing: tuple[str, ...]
    refusal: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """Why no rollout moves forward."""

    reason: str
    by: str
    since: datetime


def list_rollouts(
    *, actor: Actor, deployment_id: str | None = None, live_only: bool = False, limit: int = PAGE_ROWS
) -> list[RolloutSummary]:
    """Return the newest rollouts: of the tenant, or for the platform of all; of one deployment where one is given."""
    require(actor, Permission.ROLLOUTS_READ)
    with reading_as(actor):
        rows = _visible(actor)
        if deployment_id is not None:
            rows = rows.filter(deployment_id=deployment_id)
        if live_only:
            rows = rows.filter(state__in=LIVE)
        return [_summary(actor, rollout) for rollout in rows.order_by("-created_at", "-id")[:limit]]


def get_rollout(*, actor: Actor, rollout_id: str) -> RolloutStory:
    """Return one rollout with its journal.

    Raises:
        NotFound: there is none for this actor.
    """
    require(actor, Permission.ROLLOUTS_READ)
    with reading_as(actor):
        rollout = _visible(actor).filter(pk=rollout_id).first()
        if rollout is None:
            raise NotFound("There is no such rollout.")
        return RolloutStory(_summary(actor, rollout), tuple(rollout.events.order_by("sequence")))
