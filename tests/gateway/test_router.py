import itertools
import random
from collections import Counter

from gateway_world import load, report
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.replica import ReplicaReport, ReplicaState
from dataplane.gateway import router
from dataplane.gateway.router import Wanted

known_loads = st.builds(
    load,
    running=st.integers(0, 8),
    waiting=st.integers(0, 8),
    total=st.just(1000),
    free=st.integers(0, 500),
    cached=st.integers(0, 500),
)
loads = st.none() | known_loads
reports = st.lists(
    st.builds(
        report,
        replica_id=st.uuids().map(str),
        state=st.sampled_from(ReplicaState),
        deployment_id=st.sampled_from(["dep_chat", "dep_other"]),
        version_id=st.sampled_from(["ver_1", "ver_2"]),
        load=loads,
    ),
    max_size=8,
)
WANTED = Wanted("dep_chat", "ver_1", tokens=800, prompt_tokens=8, max_num_seqs=32)


def choose(replicas: list[ReplicaReport], wanted: Wanted = WANTED, **outstanding: int) -> str | None:
    sent = {router.incarnation(r): outstanding.get(r.replica_id, 0) for r in replicas}
    ready = router.candidates(replicas, wanted, lambda _: False)
    found = router.choose(ready, wanted, sent, random.random)
    return found.replica_id if found else None


@given(reports)
def test_only_a_ready_replica_of_the_wanted_version_is_ever_chosen(replicas: list[ReplicaReport]) -> None:
    right = {
        r.replica_id
        for r in replicas
        if (r.state, r.deployment_id, r.version_id) == (ReplicaState.READY, "dep_chat", "ver_1")
    }
    assert choose(replicas) in right or (not right and choose(replicas) is None)


@given(st.lists(known_loads, min_size=2, max_size=6))
def test_no_replica_is_chosen_that_is_worse_in_every_way_than_another(figures: list) -> None:
    replicas = [report(f"rep_{n}", load=figure) for n, figure in enumerate(figures)]
    chosen = figures[int(choose(replicas).removeprefix("rep_"))]
    for other in figures:
        better = (
            other.num_waiting < chosen.num_waiting
            and other.num_running + other.num_waiting < chosen.num_running + chosen.num_waiting
            and other.free_blocks + other.cached_blocks > chosen.free_blocks + chosen.cached_blocks
        )
        assert not better


def test_room_for_the_whole_request_comes_first_then_the_queue_then_work_then_most_room() -> None:
    full = report("full", load=load(free=99))
    queued = report("queued", load=load(waiting=1))
    busy = report("busy", load=load(running=2))
    idle_small = report("small", load=load(free=200))
    idle_large = report("large", load=load(free=300))
    best_first = [idle_large, idle_small, busy, queued, full]
    for size in range(1, 6):
        for some in itertools.combinations(best_first, size):
            for order in itertools.permutations(some):
                assert choose(list(order)) == some[0].replica_id


def test_cached_blocks_are_room() -> None:
    assert choose([report("a", load=load(free=10)), report("b", load=load(free=0, cached=200))]) == "b"


def test_a_burst_between_two_reports_is_spread() -> None:
    replicas = [report("a", load=load(running=1)), report("b", load=load(running=1)), report("c", load=load())]
    sent: Counter[str] = Counter()
    for _ in range(30):
        sent[choose(replicas, **sent)] += 1
    assert max(sent.values()) - min(sent.values()) <= 1


def test_what_was_sent_since_the_report_takes_room_and_stands_in_the_queue() -> None:
    tight = [report("tight", load=load(free=100)), report("roomy", load=load(running=5))]
    assert choose(tight) == "tight"
    assert choose(tight, tight=1) == "roomy"
    short = [report("short", load=load(running=4)), report("long", load=load(running=4, waiting=1))]
    assert choose(short, short=5) in ("short", "long")
    assert choose(short, short=6) == "long"


def test_equals_share_by_lot() -> None:
    replicas = [report(name, load=load()) for name in "abcd"]
    chosen = {choose(replicas) for _ in range(200)}
    assert chosen == set("abcd")
