"""The states of a replica and what moves it from one to the next. Pure; states are those the fleet and console show."""

from enum import StrEnum

from dataplane.contracts.replica import ReplicaState


class Event(StrEnum):
    """What happens to a replica."""

    ENGINE_UP = "engine_up"
    """The engine process has imported its libraries."""
    ATTACH = "attach"
    LOADED = "loaded"
    VERIFIED = "verified"
    """A real generation went through the serving path."""
    SLEEP = "sleep"
    """Told to give back its KV pool and to keep the weights."""
    WAKE = "wake"
    DRAIN = "drain"
    DRAINED = "drained"
    FAILED = "failed"
    """The load failed or the engine died: this process has no future."""


class TransitionError(Exception):
    """An event that the state does not allow."""

    def __init__(self, state: ReplicaState, event: Event) -> None:
        super().__init__(f"{event.value} is not possible while the replica is {state.value}")
        self.state = state
        self.event = event


_NEXT: dict[tuple[ReplicaState, Event], ReplicaState] = {
    (ReplicaState.STARTING, Event.ENGINE_UP): ReplicaState.WARM_IDLE,
    (ReplicaState.WARM_IDLE, Event.ATTACH): ReplicaState.LOADING,
    (ReplicaState.LOADING, Event.LOADED): ReplicaState.WARMING,
    (ReplicaState.WARMING, Event.VERIFIED): ReplicaState.READY,
    (ReplicaState.READY, Event.SLEEP): ReplicaState.ASLEEP,
    (ReplicaState.ASLEEP, Event.WAKE): ReplicaState.WARMING,
    (ReplicaState.DRAINING, Event.DRAINED): ReplicaState.STOPPED,
}
_DRAINABLE = (
    ReplicaState.STARTING,
    ReplicaState.WARM_IDLE,
    ReplicaState.LOADING,
    ReplicaState.WARMING,
    ReplicaState.READY,
    ReplicaState.ASLEEP,
)


def advance(state: ReplicaState, event: Event) -> ReplicaState:
    """Return the state that ``event`` leads to.

    Raises:
        TransitionError: ``state`` does not allow it. STOPPED allows nothing: a fresh process takes its place.
    """
    if event is Event.FAILED and state is not ReplicaState.STOPPED:
        return ReplicaState.STOPPED
    if event is Event.DRAIN and state in _DRAINABLE:
        return ReplicaState.DRAINING
    found = _NEXT.get((state, event))
    if found is None:
        raise TransitionError(state, event)
    return found


def may_generate(state: ReplicaState, *, verifying: bool) -> bool:
    """Say whether requests are taken: in READY from anyone, in WARMING only the generation that verifies it."""
    return state is ReplicaState.READY or (verifying and state is ReplicaState.WARMING)
