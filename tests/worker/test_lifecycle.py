from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.replica import ReplicaState
from dataplane.worker.lifecycle import Event, TransitionError, advance, may_generate

events = st.lists(st.sampled_from(Event), max_size=12)
LIFE = (Event.ENGINE_UP, Event.ATTACH, Event.LOADED, Event.VERIFIED, Event.DRAIN, Event.DRAINED)


def run(history: list[Event]) -> list[ReplicaState]:
    states = [ReplicaState.STARTING]
    for event in history:
        try:
            states.append(advance(states[-1], event))
        except TransitionError:
            continue
    return states


def test_an_undisturbed_life_goes_through_every_state_in_order() -> None:
    assert run(list(LIFE)) == [
        ReplicaState.STARTING,
        ReplicaState.WARM_IDLE,
        ReplicaState.LOADING,
        ReplicaState.WARMING,
        ReplicaState.READY,
        ReplicaState.DRAINING,
        ReplicaState.STOPPED,
    ]


@given(events, st.sampled_from(Event))
def test_a_stopped_replica_never_comes_back(history: list[Event], event: Event) -> None:
    if run(history)[-1] is ReplicaState.STOPPED:
        with pytest.raises(TransitionError):
            advance(ReplicaState.STOPPED, event)


@given(events)
def test_no_replica_is_ready_twice_or_holds_a_second_model(history: list[Event]) -> None:
    states = run(history)
    assert states.count(ReplicaState.READY) <= 1 + states.count(ReplicaState.ASLEEP)
    assert states.count(ReplicaState.LOADING) <= 1


@given(events)
def test_ready_comes_only_after_a_verified_generation(history: list[Event]) -> None:
    states = run(history)
    before_ready = [before for before, after in pairwise(states) if after is ReplicaState.READY]
    assert set(before_ready) <= {ReplicaState.WARMING}
    assert history.count(Event.VERIFIED) >= len(before_ready)


@pytest.mark.parametrize("state", ReplicaState)
def test_requests_are_taken_in_ready_only_and_the_verifying_one_in_warming(state: ReplicaState) -> None:
    assert may_generate(state, verifying=False) is (state is ReplicaState.READY)
    assert may_generate(state, verifying=True) is (state in (ReplicaState.READY, ReplicaState.WARMING))


def test_a_refused_event_says_state_and_event_in_words() -> None:
    with pytest.raises(TransitionError, match="verified is not possible while the replica is warm_idle"):
        advance(ReplicaState.WARM_IDLE, Event.VERIFIED)
