"""The switch of those who run the platform: while it is on, no rollout moves forward, and each can be rolled back."""

from controlplane.rollouts.freezing import lock_freeze
from controlplane.rollouts.models import RolloutFreeze
from controlplane.rollouts.services.commands import REASON_MAX_CHARS
from tenants import audit
from tenants.actor import Actor, acting_as, require
from tenants.errors import Conflict
from tenants.inputs import one_line
from tenants.roles import Permission


def freeze_rollouts(*, actor: Actor, reason: str) -> RolloutFreeze:
    """Stop every rollout from moving forward, until the freeze is lifted.

    Raises:
        Forbidden: the actor does not run the platform's rollouts.
        Invalid: the reason is not a line of text.
        Conflict: they are frozen.
    """
    require(actor, Permission.PLATFORM_ROLLOUTS)
    why = one_line(reason, field="reason", max_chars=REASON_MAX_CHARS)
    with acting_as(actor):
        lock_freeze()
        standing = RolloutFreeze.objects.first()
        if standing is not None:
            raise Conflict(f"Rollouts are frozen already, by {standing.frozen_by}: {standing.reason}")
        freeze = RolloutFreeze.objects.create(pk=1, reason=why, frozen_by=actor.label)
        audit.record(actor=actor, verb="rollouts.freeze", target=freeze, after={"reason": why})
    return freeze


def unfreeze_rollouts(*, actor: Actor) -> None:
    """Let rollouts go on: what was due meanwhile happens at the next tick.

    Raises:
        Forbidden: the actor does not run the platform's rollouts.
        Conflict: they are not frozen.
    """
    require(actor, Permission.PLATFORM_ROLLOUTS)
    with acting_as(actor):
        lock_freeze()
        freeze = RolloutFreeze.objects.first()
        if freeze is None:
            raise Conflict("Rollouts are not frozen.")
        audit.record(actor=actor, verb="rollouts.unfreeze", target=freeze, before={"reason": freeze.reason})
        freeze.delete()
