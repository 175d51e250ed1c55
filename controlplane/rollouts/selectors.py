"""Rollouts as the actor may see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet
from django.utils import timezone

from controlplane.rollouts import commands, words
from controlplane.rollouts.gates import NEEDS_WAIVER
from controlplane.rollouts.models import Rollout, RolloutEvent, RolloutFreeze
from controlplane.rollouts.states import LIVE, Command, RolloutState
from controlplane.rollouts.view import candidate_weight
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
    *,
    actor: Actor,
    deployment_id: str | None = None,
    live_only: bool = False,
    state: RolloutState | None = None,
    slug: str | None = None,
    limit: int = PAGE_ROWS,
) -> list[RolloutSummary]:
    """Return the newest rollouts: of the tenant, or for the platform of all.

    Args:
        actor: who looks.
        deployment_id: only this deployment's.
        live_only: only those that are not over.
        state: only those in this state.
        slug: only this tenant's.
        limit: the most that are returned.
    """
    require(actor, Permission.ROLLOUTS_READ)
    with reading_as(actor):
        rows = _visible(actor)
        if deployment_id is not None:
            rows = rows.filter(deployment_id=deployment_id)
        if live_only:
            rows = rows.filter(state__in=LIVE)
        if state is not None:
            rows = rows.filter(state=state.value)
        if slug is not None:
            rows = rows.filter(tenant__slug=slug)
        return _summaries(actor, rows.order_by("-created_at", "-id")[:limit])


def get_rollout(*, actor: Actor, rollout_id: str) -> RolloutStory:
    """Return one rollout with its journal.

    Raises:
        NotFound: there is none for this actor.
    """
    require(actor, Permission.ROLLOUTS_READ)
    with reading_as(actor):
        found = _summaries(actor, _visible(actor).filter(pk=rollout_id))
        if not found:
            raise NotFound("There is no such rollout.")
        return RolloutStory(found[0], tuple(RolloutEvent.objects.filter(rollout_id=rollout_id).order_by("sequence")))


def list_pending_approvals(*, actor: Actor) -> list[PendingApproval]:
    """Return what waits for an approval, the longest waiting first: of the tenant, or for the platform of all."""
    require(actor, Permission.ROLLOUTS_READ)
    with reading_as(actor):
        rows = _visible(actor).filter(state=RolloutState.AWAITING_APPROVAL.value).order_by("entered_at", "id")
        missing = tuple(gate.value for gate in NEEDS_WAIVER)
        return [
            PendingApproval(summary, missing, approval_refusal(actor, summary.rollout))
            for summary in _summaries(actor, rows)
        ]


def get_freeze(*, actor: Actor) -> Freeze | None:
    """Return why no rollout moves forward, or None where nothing stops them."""
    require(actor, Permission.ROLLOUTS_READ)
    with reading_as(actor):
        return _freeze()


def _visible(actor: Actor) -> QuerySet[Rollout]:
    rows = Rollout.objects.all() if actor.is_platform else Rollout.objects.for_tenant(actor.tenant)
    return rows.select_related(
        "tenant", "deployment", "stable_version__model", "candidate_version__model", "author_user", "approved_by"
    )


def _freeze() -> Freeze | None:
    row = RolloutFreeze.objects.first()
    return Freeze(row.reason, row.frozen_by, row.frozen_at) if row is not None else None


def _summaries(actor: Actor, rows: QuerySet[Rollout] | Sequence[Rollout]) -> list[RolloutSummary]:
    freeze = _freeze()
    return [_summary(actor, rollout, frozen=freeze is not None) for rollout in rows]


def _summary(actor: Actor, rollout: Rollout, *, frozen: bool) -> RolloutSummary:
    now, view = timezone.now(), rollout.view
    return RolloutSummary(
        rollout=rollout,
        state=view.state,
        weight=candidate_weight(view),
        waits_for=words.waits_for(view, frozen=frozen),
        commands=frozenset(
            command
            for command in Command
            if commands.may(view, command, now) and _permits(actor, rollout, command)
            if not (frozen and command in commands.FORWARD)
        ),
    )


def _permits(actor: Actor, rollout: Rollout, command: Command) -> bool:
    if command is Command.APPROVE:
        return not approval_refusal(actor, rollout)
    if command is Command.SUPERSEDE:
        return actor.may(Permission.ROLLOUTS_WRITE) and not actor.is_platform
    return actor.may(Permission.ROLLOUTS_WRITE) or actor.may(Permission.PLATFORM_ROLLOUTS)


def approval_refusal(actor: Actor, rollout: Rollout) -> str:
    """Say why the actor may not approve this rollout; empty where it may."""
    if not (actor.may(Permission.ROLLOUTS_APPROVE) or actor.may(Permission.PLATFORM_ROLLOUTS)):
        return "An owner of the tenant approves, or who runs the platform."
    if actor.user is None:
        return "A person approves who signed in, not a key or a process."
    if actor.user.id == rollout.author_user_id:
        return "You made this rollout; somebody else approves it."
    return ""
