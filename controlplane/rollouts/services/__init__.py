"""Every change to rollouts: keyword-only, the actor first, one transaction, its audit row."""

from controlplane.rollouts.services.commands import (
    REASON_MAX_CHARS,
    Rollback,
    abort_rollout,
    approve_rollout,
    pause_rollout,
    resume_rollout,
    roll_back,
    start_rollout,
)
from controlplane.rollouts.services.drafts import create_rollout
from controlplane.rollouts.services.freeze import freeze_rollouts, unfreeze_rollouts
from controlplane.rollouts.services.ticks import advance, due_rollouts, note_stumble

__all__ = [
    "REASON_MAX_CHARS",
    "Rollback",
    "abort_rollout",
    "advance",
    "approve_rollout",
    "create_rollout",
    "due_rollouts",
    "freeze_rollouts",
    "note_stumble",
    "pause_rollout",
    "resume_rollout",
    "roll_back",
    "start_rollout",
    "unfreeze_rollouts",
]
