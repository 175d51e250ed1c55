"""What people do with a rollout. Each is compare-and-set on the revision that they have seen; a rollback needs none."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from controlplane.rollouts import commands
from controlplane.rollouts.freezing import is_frozen
from controlplane.rollouts.gates import NEEDS_WAIVER
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.observation import observe
from controlplane.rollouts.services import rows
from controlplane.rollouts.states import LIVE, RolloutState
from controlplane.rollouts.view import Decision, View, let_go
from tenants.actor import Actor, acting_as, require
from tenants.errors import Forbidden
from tenants.inputs import one_line
from tenants.roles import Permission

REASON_MAX_CHARS = 300
_Decide = Callable[[View, datetime], Decision]


@dataclass(frozen=True, slots=True)
class Rollback:
    """What a rollback met: the rollout, whether there was anything to take back, and the answer in words."""

    rollout: Rollout
    applied: bool
    words: str


def start_rollout(*, actor: Actor, rollout_id: str, expected_revision: int) -> Rollout:
    """Start a draft. What an earlier rollout of the deployment kept asleep is let go: memory is for this one.

    Raises:
        Forbidden: the actor may not change rollouts.
        NotFound: there is no such rollout for the actor.
        Conflict: it has moved on, or all rollouts are frozen.
    """
    _require_writer(actor)
    with acting_as(actor):
        deployment, rollout = rows.locked(actor, rollout_id)
        rows.require_revision(rollout, expected_revision)
        now = rows.database_now()
        decision = commands.start(rollout.view, now, who=actor.label, frozen=is_frozen())
        keeping = Rollout.objects.filter(deployment=deployment, state=RolloutState.PROMOTED.value)
        for earlier in keeping.exclude(previous_until=None).select_related("tenant").order_by("id"):
            gone = let_go(earlier.view, now, f"The version before is let go: {rollout.id} has started.")
            rows.transit(
                actor=actor, deployment=deployment, rollout=earlier, decision=gone, verb="rollout.let_go"
            )  # fmt: skip
        rows.transit(actor=actor, deployment=deployment, rollout=rollout, decision=decision, verb="rollout.start")
    return rows.committed(rollout)


def approve_rollout(
    *,
    actor: Actor,
    rollout_id: str,
    expected_revision: int,
    digest: str,
    step: int,
    waivers: Mapping[str, str],
) -> Rollout:
    """Approve the candidate's content after a step; it takes more traffic.

    Args:
        actor: a platform admin, or an owner of the tenant; never who made the rollout.
        rollout_id: which.
        expected_revision: what the actor has seen.
        digest: the candidate's digest, as seen.
        step: the index of the step that was judged, as seen.
        waivers: for each gate of :data:`~controlplane.rollouts.gates.NEEDS_WAIVER`, why it may be done without.

    Raises:
        Forbidden: the actor may not approve rollouts, or made this one.
        NotFound: there is no such rollout for the actor.
        Conflict: it has moved on; it waits for no approval, or of another content or step; its candidate is not READY,
            or stopped by the judge; or all rollouts are frozen.
        Invalid: a waiver is missing, or not a line of text.
    """
    if not actor.may(Permission.PLATFORM_ROLLOUTS):
        require(actor, Permission.ROLLOUTS_APPROVE)
    approver = actor.user
    if approver is None:
        raise Forbidden("A rollout is approved by a person who signed in, not by a key or a process.")
    reasons = {
        gate: one_line(why, field=f"waivers.{gate}", max_chars=REASON_MAX_CHARS)
        for gate, why in waivers.items()
        if gate in NEEDS_WAIVER and why.strip()
    }
    with acting_as(actor):
        rows.deployment_of(actor, rollout_id)  # a stranger does not wait while another's rollout is looked at
    seen = observe(rollout_id)
    with acting_as(actor):
        deployment, rollout = rows.locked(actor, rollout_id)
        rows.require_revision(rollout, expected_revision)
        decision = commands.approve(
            rollout.view, replace(seen, frozen=is_frozen()), rows.database_now(),
            who=actor.label, approver=approver.id, digest=digest, step=step, waivers=reasons,
        )  # fmt: skip
        rollout.waivers = reasons
        rows.transit(
            actor=actor, deployment=deployment, rollout=rollout, decision=decision, verb="rollout.approve",
            approver=approver,
        )  # fmt: skip
    return rows.committed(rollout)


def pause_rollout(*, actor: Actor, rollout_id: str, expected_revision: int, reason: str = "") -> Rollout:
    """Leave a rollout and its weights where they are, watched by the judge. Raises as :func:`resume_rollout` does."""
    why = _reason(reason)
    return _command(
        actor, rollout_id, expected_revision, "rollout.pause",
        lambda view, now: commands.pause(view, now, who=actor.label, why=why),
    )  # fmt: skip


def resume_rollout(*, actor: Actor, rollout_id: str, expected_revision: int) -> Rollout:
    """Let a paused rollout go on where it was.

    Raises:
        Forbidden: the actor may not change rollouts.
        NotFound: there is no such rollout for the actor.
        Conflict: it has moved on, or its state does not lead there, or all rollouts are frozen.
    """
    return _command(
        actor, rollout_id, expected_revision, "rollout.resume",
        lambda view, now: commands.resume(view, now, who=actor.label, frozen=is_frozen()),
    )  # fmt: skip


def abort_rollout(*, actor: Actor, rollout_id: str, expected_revision: int, reason: str = "") -> Rollout:
    """Give up a rollout whose candidate never had traffic. Raises as :func:`resume_rollout` does."""
    why = _reason(reason)
    return _command(
        actor, rollout_id, expected_revision, "rollout.abort",
        lambda view, now: commands.abort(view, now, who=actor.label, why=why),
    )  # fmt: skip


def roll_back(*, actor: Actor, rollout_id: str, reason: str = "") -> Rollback:
    """Take the candidate's traffic away, whatever state the rollout is in; one that is over is left as it is.

    Before the promotion the stable version takes all traffic at once. After it the version before is woken first, as
    long as it is kept; a draft of a further rollout is superseded.

    Raises:
        Forbidden: the actor may not change rollouts.
        NotFound: there is no such rollout for the actor.
    """
    _require_writer(actor)
    why = _reason(reason)
    with acting_as(actor):
        # Race: a promotion at the same moment. This waits for it and takes it back: it reads under the lock.
        deployment, rollout = rows.locked(actor, rollout_id)
        now, view = rows.database_now(), rollout.view
        decision = commands.roll_back(view, now, who=actor.label, why=why)
        if decision is None:
            return Rollback(rollout, applied=False, words=_nothing_left(view))
        if view.state is RolloutState.PROMOTED:
            _supersede_draft(actor, rollout, now)
        rows.transit(actor=actor, deployment=deployment, rollout=rollout, decision=decision, verb="rollout.roll_back")
    return Rollback(rows.committed(rollout), applied=True, words=decision.cause)


def _command(actor: Actor, rollout_id: str, expected_revision: int, verb: str, decide: _Decide) -> Rollout:
    _require_writer(actor)
    with acting_as(actor):
        # Race: two people, or a person and the clock, on what both have read. The lock puts them in line, the revision
        # tells the second.
        deployment, rollout = rows.locked(actor, rollout_id)
        rows.require_revision(rollout, expected_revision)
        decision = decide(rollout.view, rows.database_now())
        rows.transit(actor=actor, deployment=deployment, rollout=rollout, decision=decision, verb=verb)
    return rows.committed(rollout)


def supersede_live(actor: Actor, rollout: Rollout, now: datetime) -> None:
    """End a rollout whose deployment is locked, for another one of it.

    Raises:
        Conflict: it is rolling back.
    """
    decision = commands.supersede(rollout.view, now, who=actor.label)
    rows.transit(
        actor=actor, deployment=rollout.deployment, rollout=rollout, decision=decision, verb="rollout.supersede"
    )  # fmt: skip


def _supersede_draft(actor: Actor, promoted: Rollout, now: datetime) -> None:
    """End a draft of the same deployment: what it would start from changes. Once started, it had ended the keeping."""
    further = Rollout.objects.filter(deployment_id=promoted.deployment_id, state__in=LIVE)
    for draft in further.select_related("tenant", "deployment"):
        supersede_live(actor, draft, now)


def _nothing_left(view: View) -> str:
    if view.state is RolloutState.ROLLING_BACK:
        return "It is rolling back already."
    if view.state is RolloutState.PROMOTED:
        return "The version before is not kept any more. Make a rollout to it instead."
    return f"It is {view.state.value.replace('_', ' ')}: its candidate has no traffic."


def _require_writer(actor: Actor) -> None:
    if not actor.may(Permission.PLATFORM_ROLLOUTS):
        require(actor, Permission.ROLLOUTS_WRITE)


def _reason(text: str) -> str:
    return one_line(text, field="reason", max_chars=REASON_MAX_CHARS) if text.strip() else ""
