"""The clock of the rollouts."""

import structlog

from controlplane.jobs import services as jobs
from controlplane.jobs.lease import LeaseLostError
from controlplane.rollouts import services

_AT_ONCE = 4
"""How many transitions of one rollout a tick makes: what waits for nothing need not wait for the next tick."""
_log = structlog.get_logger(__name__)


def tick(lease: jobs.Lease) -> None:
    """Let the machine look at every rollout, each in a transaction of its own.

    One that stumbles is looked at again at the next tick, and holds up no other: it says itself what was wrong. A
    worker that lost its lease stops; what another does meanwhile is decided by each rollout's revision.
    """
    for rollout_id, revision in services.due_rollouts():
        try:
            _advance(lease, rollout_id, revision)
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001
            _log.exception("rollout stumbled", rollout_id=rollout_id)
            services.note_stumble(
                rollout_id=rollout_id, stumble=f"{type(error).__name__}: {error}"
            )  # fmt: skip


def _advance(lease: jobs.Lease, rollout_id: str, revision: int) -> None:
    for made in range(_AT_ONCE):
        jobs.heartbeat(lease)
        if services.advance(rollout_id=rollout_id, revision=revision + made) is None:
            return
