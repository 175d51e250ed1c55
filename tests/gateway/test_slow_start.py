from gateway_world import load, report
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.replica import ReplicaState, ReplicaTable
from dataplane.gateway import router, slow_start
from dataplane.gateway.router import Wanted
from dataplane.gateway.slow_start import FIRST, Ramp, has_room, is_over

WANTED = Wanted("dep_chat", "ver_1", tokens=2048, prompt_tokens=80, max_num_seqs=32)


def stepped(step: int, **changes: object):
    return report("rep", load=load(step=step), **changes)


def table(*replicas, at_ms: int = 0) -> ReplicaTable:
    return ReplicaTable(node="node", number=1, at_ms=at_ms, replicas=replicas)


def limit(ramps: dict, shown) -> int:
    return ramps[router.incarnation(shown)].limit


def test_the_pace_doubles_only_with_reports_that_show_the_engine_at_work() -> None:
    ramps: dict = {}
    limits = []
    for step in (5, 5, 6, 6, 9, 9):
        ramps = slow_start.ramps(ramps, table(stepped(step)))
        limits.append(limit(ramps, stepped(step)))
    assert limits == [FIRST, FIRST, 2 * FIRST, 2 * FIRST, 4 * FIRST, 4 * FIRST]


def test_a_replica_that_slept_or_was_replaced_begins_again() -> None:
    ramps: dict = {}
    for step in range(10):
        ramps = slow_start.ramps(ramps, table(stepped(step)))
    assert limit(ramps, stepped(9)) > FIRST
    assert slow_start.ramps(ramps, table(stepped(9, state=ReplicaState.ASLEEP))) == {}
    assert limit(slow_start.ramps(ramps, table(stepped(9, pid=2))), stepped(9, pid=2)) == FIRST
    assert limit(slow_start.ramps(ramps, table(stepped(9, since_ms=7))), stepped(9, since_ms=7)) == FIRST


def test_a_replica_that_was_ready_long_before_it_is_heard_of_has_come_up_to_its_pace() -> None:
    shown = stepped(1, since_ms=1_000)
    for at_ms, is_new in ((1_000, True), (9_000, True), (60_000, False)):
        [ramp] = slow_start.ramps({}, table(shown, at_ms=at_ms)).values()
        assert is_over(ramp, WANTED) is not is_new
    ramps = slow_start.ramps({}, table(shown, at_ms=1_000))
    assert slow_start.ramps(ramps, table(shown, at_ms=60_000)) == ramps, "time alone brings nobody up to its pace"


@given(st.lists(st.booleans(), max_size=100))
def test_the_pace_has_a_bound(works: list[bool]) -> None:
    ramps, step = {}, 0
    for at_work in works:
        step += at_work
        ramps = slow_start.ramps(ramps, table(stepped(step)))
    assert all(isinstance(ramp, Ramp) and FIRST <= ramp.limit <= 1 << 16 for ramp in ramps.values())


def test_one_may_always_be_under_way_however_full_the_replica_says_it_is() -> None:
    full = report("rep", load=load(running=32, waiting=9, free=0))
    assert has_room(full, WANTED, sent=0, limit=FIRST)
    assert not has_room(full, WANTED, sent=1, limit=FIRST)


def test_more_go_only_while_sequences_and_blocks_for_the_prompt_are_free() -> None:
    def room(sent: int, limit: int = 100, **figures: int) -> bool:
        return has_room(report("rep", load=load(**figures)), WANTED, sent=sent, limit=limit)

    assert room(4, running=4)
    assert not room(4, limit=4, running=4)
    assert not room(4, running=4, waiting=1), "its engine's queue is not empty"
    assert room(31, running=20)
    assert not room(32, running=20), "those it has not told of yet count"
    assert room(4, running=4, free=6, cached=4), "ten blocks for eighty tokens"
    assert not room(4, running=4, free=5, cached=4)
    assert room(5, running=4, free=20)
    assert not room(5, running=4, free=19), "the one it has not told of needs blocks too"


def test_without_figures_only_the_pace_counts() -> None:
    assert has_room(report("rep"), WANTED, sent=FIRST - 1, limit=FIRST)
    assert not has_room(report("rep"), WANTED, sent=FIRST, limit=FIRST)
