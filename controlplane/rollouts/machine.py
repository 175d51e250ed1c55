"""The rollout machine, pure: what a tick makes of what it observes, and what each command does. Time is an argument."""

from controlplane.rollouts.states import (
    LIVE,
    PAUSABLE,
    TERMINAL,
    TRANSITIONS,
    WEIGHTLESS,
    WEIGHTY,
    Command,
    RolloutState,
)

__all__ = ["LIVE", "PAUSABLE", "TERMINAL", "TRANSITIONS", "WEIGHTLESS", "WEIGHTY", "Command", "RolloutState"]
