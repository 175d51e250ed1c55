"""The machine's own step: observe, decide, write. Safe however often it is asked for."""

from dataclasses import replace

from django.db.models import Q

from controlplane.rollouts import machine
from controlplane.rollouts.freezing import is_frozen
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.observation import observe
from controlplane.rollouts.services import rows
from controlplane.rollouts.states import LIVE, RolloutState
from tenants.actor import acting_as, system_actor

_MACHINE = system_actor("rollouts")
_STUMBLE_MAX_CHARS = 300
_WAITING_FOR_PEOPLE = (RolloutState.DRAFT,)


def due_rollouts() -> list[tuple[str, int]]:
    """Return id and revision of each rollout that the machine watches, the longest in its state first."""
    with acting_as(_MACHINE):
        live = Q(state__in=LIVE - set(_WAITING_FOR_PEOPLE))
        keeping = Q(state=RolloutState.PROMOTED.value, previous_until__isnull=False)
        return list(Rollout.objects.filter(live | keeping).order_by("entered_at", "id").values_list("id", "revision"))


def advance(*, rollout_id: str, revision: int) -> RolloutState | None:
    """Make the transition that is due; return the state that it led to, None where none was.

    Args:
        rollout_id: which.
        revision: the one that was due. Whoever comes late with the same one finds its work done.
    """
    # Seen before the lock is taken: judging reads thousands of rows, and a rollback must not wait for that. What is
    # seen belongs to this revision, and counts only while the rollout has it.
    seen = observe(rollout_id)
    with acting_as(_MACHINE):
        deployment, rollout = rows.locked(_MACHINE, rollout_id)
        if rollout.revision != revision:
            return None
        now = rows.database_now()
        seen = replace(seen, frozen=is_frozen())
        since = machine.unready_since(rollout.view, seen, now)
        view = replace(rollout.view, unready_since=since)
        decision = machine.tick(view, seen, now)
        if decision is None:
            _note(rollout, unready_since=since, stumble="")
            return None
        rows.transit(
            actor=_MACHINE, deployment=deployment, rollout=rollout, decision=decision, verb="rollout.advance"
        )  # fmt: skip
    return RolloutState(rows.committed(rollout).state)


def note_stumble(*, rollout_id: str, stumble: str) -> None:
    """Keep on the rollout why its step failed, for people to see; the next one that does not fail takes it away."""
    with acting_as(_MACHINE):
        text = stumble.replace("\0", "\ufffd")[:_STUMBLE_MAX_CHARS]
        Rollout.objects.filter(pk=rollout_id).update(stumble=text)


def _note(rollout: Rollout, **changed: object) -> None:
    """Write what is no transition, where it differs."""
    different = {name: value for name, value in changed.items() if getattr(rollout, name) != value}
    if different:
        Rollout.objects.filter(pk=rollout.pk).update(**different)
