"""Whether two versions fit side by side: by memory, by processes, by what tenants are promised."""

from dataclasses import replace

import pytest
from domain import CONFIG
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from controlplane.rollouts.preflight import Ask, Node, Outcome, Version, check
from dataplane.contracts import memory
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.replica import NodeReport, ReplicaReport, ReplicaState

MIB = 1024**2
ENGINE = EngineSettings(kv_memory_mb=64)
NEEDED_BYTES = memory.plan(CONFIG, ENGINE).needed_bytes
TOTAL_BYTES = 20 * NEEDED_BYTES
ASK = Ask(
    deployment_id="dep_1",
    engine=ENGINE,
    shares={"acme": Share(guarantee_tokens=100)},
    stable=Version("ver_old", CONFIG),
    candidate=Version("ver_new", CONFIG),
    replicas=1,
    first_replicas=1,
)


def replica(version_id, *, deployment_id="dep_1", state=ReplicaState.READY, memory_bytes=NEEDED_BYTES):
    return ReplicaReport(
        replica_id=f"rep_{version_id}", node="n", state=state, cause="", since_ms=0, socket="",
        deployment_id=deployment_id, version_id=version_id, memory_bytes=memory_bytes,
    )  # fmt: skip


def node(name="one", *, room_bytes, replicas=(), max_processes=8):
    """A node that has ``room_bytes`` after the fifteen per cent that are not planned with."""
    available_bytes = TOTAL_BYTES - int(TOTAL_BYTES * 0.85) + room_bytes
    report = NodeReport(
        memory_bytes=TOTAL_BYTES, available_bytes=available_bytes, devices=(), asleep_budget_bytes=0,
        warm_idle_floor=1, max_processes=max_processes,
    )  # fmt: skip
    return Node(name, report, tuple(replicas))


def outcome(ask, *nodes, planned_bytes=None):
    return check(ask, nodes, planned_bytes or {}).outcome


def test_a_candidate_beside_the_stable_version_is_co_resident_to_the_byte():
    running = [replica("ver_old")]
    assert outcome(ASK, node(room_bytes=NEEDED_BYTES, replicas=running)) is Outcome.CO_RESIDENT
    assert outcome(ASK, node(room_bytes=NEEDED_BYTES - 1, replicas=running)) is Outcome.REFUSED


def test_where_the_stable_versions_node_is_full_the_candidate_gets_another():
    full = node("full", room_bytes=0, replicas=[replica("ver_old")])
    found = check(ASK, [full, node("free", room_bytes=NEEDED_BYTES)], {})
    assert found.outcome is Outcome.SEPARATE
    assert "nodes of their own for the candidate (free)" in found.words
    assert [(item.node, item.arm, item.running, item.to_come) for item in found.items] == [
        ("full", "stable", 1, 0),
        ("free", "candidate", 0, 1),
    ]


def test_a_node_with_the_stable_version_is_preferred_to_one_with_more_room():
    beside = node("beside", room_bytes=NEEDED_BYTES, replicas=[replica("ver_old")])
    assert outcome(ASK, node("roomy", room_bytes=9 * NEEDED_BYTES), beside) is Outcome.CO_RESIDENT


def test_each_version_needs_its_replicas_in_the_end_those_that_rest_included():
    three = replace(ASK, replicas=3, first_replicas=1)
    running = [replica("ver_old"), replica("ver_old", state=ReplicaState.ASLEEP)]
    assert outcome(three, node(room_bytes=4 * NEEDED_BYTES, replicas=running)) is Outcome.CO_RESIDENT
    assert outcome(three, node(room_bytes=4 * NEEDED_BYTES - 1, replicas=running)) is Outcome.REFUSED
    loading = [*running, replica("ver_new", state=ReplicaState.LOADING)]
    assert outcome(three, node(room_bytes=3 * NEEDED_BYTES, replicas=loading)) is Outcome.CO_RESIDENT


def test_a_stable_version_that_is_cold_is_given_its_room_first():
    assert outcome(ASK, node(room_bytes=2 * NEEDED_BYTES)) is Outcome.CO_RESIDENT
    assert outcome(ASK, node(room_bytes=2 * NEEDED_BYTES - 1)) is Outcome.REFUSED


def test_what_running_replicas_will_still_fill_is_not_given_away():
    young = [replica("ver_old", memory_bytes=NEEDED_BYTES - 50 * MIB)]
    assert outcome(ASK, node(room_bytes=NEEDED_BYTES + 50 * MIB, replicas=young)) is Outcome.CO_RESIDENT
    found = check(ASK, [node(room_bytes=NEEDED_BYTES + 50 * MIB - 1, replicas=young)], {})
    assert found.outcome is Outcome.REFUSED
    other = replica("ver_x", deployment_id="dep_2", memory_bytes=0)
    crowded = node(room_bytes=NEEDED_BYTES, replicas=[replica("ver_old"), other])
    assert outcome(ASK, crowded) is Outcome.CO_RESIDENT
    assert outcome(ASK, crowded, planned_bytes={("dep_2", "ver_x"): 1}) is Outcome.REFUSED


def test_a_refusal_has_the_numbers_and_names_what_is_not_supported():
    found = check(ASK, [node(room_bytes=NEEDED_BYTES // 2, replicas=[replica("ver_old")])], {})
    assert f"A replica of the candidate version takes {memory.gib(NEEDED_BYTES)} (weights in fp32 " in found.words
    assert f"one has {memory.gib(NEEDED_BYTES // 2)} for it" in found.words
    assert "Swapping versions through host memory and draining a replica first are not supported" in found.words
    assert "Side by side" not in found.words  # an empty node would hold both


def test_versions_that_no_node_could_ever_hold_both_are_told_so():
    large = replace(ASK, engine=changed(ENGINE, kv_memory_mb=12 * NEEDED_BYTES // MIB))
    found = check(large, [node(room_bytes=0, replicas=[replica("ver_old")])], {})
    assert "Side by side on one, " in found.words
    assert "lack" in found.words


@pytest.mark.parametrize(
    ("replicas", "max_processes", "expected"),
    [
        ([replica("ver_old")], 1, Outcome.REFUSED),
        ([replica("ver_old")], 2, Outcome.CO_RESIDENT),
        ([replica("ver_old"), replica("", deployment_id="", state=ReplicaState.WARM_IDLE)], 2, Outcome.CO_RESIDENT),
        ([replica("ver_old"), replica("v", deployment_id="d", state=ReplicaState.ASLEEP)], 2, Outcome.CO_RESIDENT),
        ([replica("ver_old"), replica("v", deployment_id="d", state=ReplicaState.DRAINING)], 2, Outcome.REFUSED),
        ([replica("ver_old", state=ReplicaState.STOPPED)], 2, Outcome.CO_RESIDENT),
    ],
)
def test_a_candidate_needs_a_process_that_the_node_may_run(replicas, max_processes, expected):
    found = check(ASK, [node(room_bytes=5 * NEEDED_BYTES, replicas=replicas, max_processes=max_processes)], {})
    assert found.outcome is expected
    if expected is Outcome.REFUSED:
        assert f"all {max_processes} processes that one may run are taken" in found.words


def test_guarantees_must_fit_the_candidates_pools_at_its_first_step():
    pool_tokens = memory.safe_guarantees(CONFIG, ENGINE, 1)
    wide = replace(ASK, shares={"acme": Share(guarantee_tokens=2 * pool_tokens)}, replicas=2, first_replicas=2)
    roomy = node(room_bytes=9 * NEEDED_BYTES, replicas=[replica("ver_old")])
    assert outcome(wide, roomy) is Outcome.CO_RESIDENT
    found = check(replace(wide, first_replicas=1), [roomy], {})
    assert found.outcome is Outcome.REFUSED
    assert found.words.startswith("Each version keeps the guarantees whole, and the candidate begins with 1: ")
    hungry = replace(wide, candidate=Version("ver_new", changed(CONFIG, num_layers=2 * CONFIG.num_layers)))
    assert outcome(hungry, roomy) is Outcome.REFUSED  # its tokens take twice as much of the pool


def test_what_cannot_be_planned_is_refused_by_name():
    roomy = node(room_bytes=9 * NEEDED_BYTES, replicas=[replica("ver_old")])
    on_gpu = check(replace(ASK, engine=changed(ENGINE, device="cuda")), [roomy], {})
    assert (on_gpu.outcome, "what is free on cuda" in on_gpu.words) == (Outcome.REFUSED, True)
    longer = replace(ASK, engine=changed(ENGINE, max_model_len=CONFIG.context_tokens + 1))
    assert "Lower max_model_len first" in check(longer, [roomy], {}).words
    assert "no node of the fleet is heard of" in check(ASK, [], {}).words


@given(
    rooms=st.lists(st.integers(0, 6 * NEEDED_BYTES), max_size=4),
    stable_on=st.integers(0, 3),
    replicas=st.integers(1, 4),
)
def test_whatever_is_placed_was_asked_for_and_fits(rooms, stable_on, replicas):
    nodes = [
        node(f"n{index}", room_bytes=room, replicas=[replica("ver_old")] if index == stable_on else [])
        for index, room in enumerate(rooms)
    ]
    found = check(replace(ASK, replicas=replicas), nodes, {})
    if found.outcome is Outcome.REFUSED:
        assert not found.items
        return
    for arm in ("stable", "candidate"):
        assert sum(item.running + item.to_come for item in found.items if item.arm == arm) == replicas
    for place, room in zip(nodes, rooms, strict=True):
        mine = [item for item in found.items if item.node == place.name]
        assert sum(item.to_come * item.needed_bytes for item in mine) <= room
    together = all(
        any(item.node == other.node and other.arm == "stable" for other in found.items)
        for item in found.items
        if item.arm == "candidate"
    )
    assert (found.outcome is Outcome.CO_RESIDENT) == together
