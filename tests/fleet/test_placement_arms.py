"""Rollouts as the planner sees them: a candidate beside the stable arm, and the way back after a promotion."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from planning import READY_FILES, catalog_of, deployment

from dataplane.contracts.arms import replicas_for
from dataplane.contracts.catalog import CANDIDATE, PREVIOUS, Arm, Catalog, Hold, IdlePolicy
from dataplane.contracts.replica import ReplicaState as S
from dataplane.fleet import placement
from dataplane.fleet.plan import Assignment, Attach, Drain, Observation, Policy, ReplicaView, Sleep, Start, Stop, Wake
from dataplane.fleet.tiers import Use


def rollout(weight: int, hold: Hold = Hold.READY, *, count: int = 1, idle: IdlePolicy | None = None) -> Catalog:
    return catalog_of(deployment("d1", "v1", Arm("v2", weight, CANDIDATE, hold), count=count, most=8, idle=idle))


def promoted(hold: Hold = Hold.ASLEEP, *, count: int = 1, idle: IdlePolicy | None = None) -> Catalog:
    return catalog_of(deployment("d1", "v2", Arm("v1", 0, PREVIOUS, hold), count=count, idle=idle))


def of_version(catalog: Catalog, version: str) -> Assignment:
    return next(assignment for assignment in placement.servable(catalog) if assignment.version_id == version)


def ready_replicas(catalog: Catalog, version: str, count: int) -> list[ReplicaView]:
    assignment = of_version(catalog, version)
    return [ReplicaView(f"{version}-{n}", S.READY, assignment, memory_bytes=5) for n in range(count)]


ROOM = Policy(warm_idle_floor=0, asleep_budget_bytes=100)


@given(st.integers(1, 8), st.integers(0, 100), st.integers(0, 100), st.sampled_from(Hold), st.booleans())
def test_weights_and_holds_restart_nothing_and_take_nothing_from_the_stable_arm(
    count: int, before: int, after: int, hold: Hold, ends: bool
) -> None:
    old, new = rollout(before, count=count), rollout(after, hold, count=count)
    if ends:
        new = catalog_of(deployment("d1", "v1", count=count, most=8))
    held = replicas_for(Arm("v2", before, CANDIDATE, Hold.READY), count)
    views = [*ready_replicas(old, "v1", count), *ready_replicas(old, "v2", held)]
    plan = placement.plan(new, Observation(tuple(views), READY_FILES, {}), ROOM, 0.0)
    touched = {action.replica_id for action in plan.actions if isinstance(action, (Drain, Stop, Sleep))}
    assert not any(replica_id.startswith("v1") for replica_id in touched)
    assert len(touched) == max(0, held - plan.wanted.get(of_version(old, "v2"), 0)) or hold is Hold.ASLEEP
    wanted = plan.wanted.get(of_version(old, "v2"), 0)
    assert sum(isinstance(action, Start) for action in plan.actions) == max(0, wanted - held)


def test_a_candidate_without_weight_is_loaded_and_stays_ready_while_the_idle_stable_arm_rests() -> None:
    catalog = rollout(0, count=0, idle=IdlePolicy(asleep_after_s=5))
    stable, candidate = of_version(catalog, "v1"), of_version(catalog, "v2")
    asleep = ReplicaView("v1-0", S.ASLEEP, stable, memory_bytes=5)
    seen = Observation((asleep, ReplicaView("r2", S.WARM_IDLE)), READY_FILES, {}, {"d1": Use(0.0)})
    assert placement.plan(catalog, seen, ROOM, 100.0).actions == (Attach("r2", candidate),)
    ready = ReplicaView("r2", S.READY, candidate, pending=3)
    seen = msgspec.structs.replace(seen, replicas=(asleep, ready))
    plan = placement.plan(catalog, seen, ROOM, 1000.0)
    assert (plan.actions, plan.wanted) == ((), {candidate: 1}), "who tries a candidate wakes nothing"


def test_what_was_stable_falls_asleep_once_its_requests_are_over_and_wakes_without_a_load() -> None:
    catalog = promoted(count=2)
    before, after = ready_replicas(catalog, "v1", 2), ready_replicas(catalog, "v2", 2)

    def actions(catalog: Catalog, *views: ReplicaView) -> tuple:
        return placement.plan(
            catalog, Observation(views, READY_FILES, {}, {"d1": Use(0.0, is_now=True)}), ROOM, 0
        ).actions

    loading = msgspec.structs.replace(after[1], state=S.LOADING)
    assert actions(catalog, *before, after[0], loading) == ()
    busy = [msgspec.structs.replace(view, pending=n + 1) for n, view in enumerate(before)]
    assert [type(action) for action in actions(catalog, *busy, *after)] == [Drain]
    slept = actions(catalog, busy[1], before[0], *after)
    assert {type(action): action.replica_id for action in slept} == {Sleep: "v1-0", Drain: "v1-1"}
    asleep = msgspec.structs.replace(before[0], state=S.ASLEEP)
    assert actions(catalog, asleep, *after) == ()
    assert actions(catalog, *after) == (), "what is gone is not loaded to sleep"
    assert [type(action) for action in actions(promoted(Hold.READY, count=2), asleep, *after)] == [Wake]
    back = catalog_of(deployment("d1", "v1", count=2))
    assert [type(action) for action in actions(back, asleep, *after)] == [Wake, Start], "and the new one serves on"
    assert [type(action) for action in actions(back, *before, *after)] == [Drain, Drain]


def test_a_way_back_outlives_the_idle_policy_and_gives_its_memory_last_of_equals() -> None:
    catalog = promoted(count=0, idle=IdlePolicy(asleep_after_s=5, disk_after_s=10))
    views = [
        msgspec.structs.replace(view, state=S.ASLEEP)
        for version in ("v1", "v2")
        for view in ready_replicas(catalog, version, 1)
    ]
    seen = Observation(tuple(views), READY_FILES, {}, {"d1": Use(0.0)})
    assert placement.plan(catalog, seen, ROOM, 7.0).actions == ()
    [stopped] = placement.plan(catalog, seen, ROOM, 1000.0).actions
    assert stopped == Stop("v2-0", "idle: steps down to disk")
    tight = msgspec.structs.replace(ROOM, asleep_budget_bytes=9)
    [stopped] = placement.plan(catalog, seen, tight, 7.0).actions
    assert stopped.replica_id == "v2-0"
    none = msgspec.structs.replace(ROOM, asleep_budget_bytes=0)
    assert {action.replica_id for action in placement.plan(catalog, seen, none, 7.0).actions} == {"v1-0", "v2-0"}


def test_of_two_arms_with_one_version_the_one_that_needs_more_counts() -> None:
    entry = deployment("d1", "v1", Arm("v2", 0, PREVIOUS, Hold.ASLEEP), Arm("v2", 50, CANDIDATE, Hold.READY), count=2)
    assert sorted(placement.plan(catalog_of(entry), Observation((), {}, {}), ROOM, 0.0).wanted.values()) == [1, 2]
