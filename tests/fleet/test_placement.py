from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import READY_FILES, VERSIONS, catalog_of, catalogs, deployment, held_asleep, policies

from dataplane.contracts.arms import replicas_for
from dataplane.contracts.catalog import STABLE, Catalog, IdlePolicy, kept_replicas
from dataplane.contracts.replica import ReplicaState as S
from dataplane.contracts.replica import Tier
from dataplane.fleet import placement
from dataplane.fleet.backoff import BASE_S, CAP_S, STABLE_S, History, after_failure
from dataplane.fleet.plan import (
    Assignment,
    Attach,
    Drain,
    Observation,
    Plan,
    Policy,
    Prepare,
    ReplicaView,
    Resting,
    Sleep,
    Start,
    Stop,
    VersionView,
    Wake,
)
from dataplane.fleet.tiers import Use

HOLDING = frozenset({S.LOADING, S.WARMING, S.READY, S.ASLEEP, S.DRAINING})


@st.composite
def observations(draw: st.DrawFn, catalog: Catalog) -> Observation:
    known = [*placement.servable(catalog), *placement.servable(draw(catalogs))]
    views = []
    for number in range(draw(st.integers(0, 8))):
        state = draw(st.sampled_from([*S, S.READY, S.READY, S.READY, S.ASLEEP, S.ASLEEP, S.WARM_IDLE, S.WARM_IDLE]))
        held = known and (state in HOLDING or draw(st.booleans()))
        assignment = draw(st.sampled_from(known)) if held else None
        if assignment is None and state in HOLDING:
            state = S.STARTING
        views.append(
            ReplicaView(
                f"r{number}",
                state,
                assignment,
                ending=draw(st.sampled_from([False, False, False, True])),
                pending=draw(st.sampled_from([0, 0, 3])) if state is S.READY else 0,
                memory_bytes=draw(st.integers(0, 15)),
            )
        )
    moments = st.floats(0, 20)
    files = st.one_of(
        st.just(VersionView(ready=True)),
        st.just(VersionView(ready=True)),
        st.just(VersionView(ready=False)),
        moments.map(lambda at: VersionView(ready=False, cause="blob is missing", retry_at_s=at)),
    )
    history = st.builds(History, failures=st.integers(1, 5), cause=st.just("crashed"), retry_at_s=moments)
    return Observation(
        replicas=tuple(views),
        versions=draw(st.dictionaries(st.sampled_from(sorted(VERSIONS)), files)),
        failures=draw(st.dictionaries(st.sampled_from([None, *known]), history)),
        uses=draw(
            st.dictionaries(
                st.sampled_from(["d1", "d2"]),
                st.builds(Use, st.one_of(st.none(), st.floats(0, 20)), st.sampled_from([False, False, True])),
            )
        ),
    )


situations = catalogs.flatmap(lambda catalog: st.tuples(st.just(catalog), observations(catalog), policies))


def serving(seen: Observation, plan: Plan) -> Counter[Assignment]:
    """Replicas by assignment once ``plan`` is carried out."""
    ended = {action.replica_id for action in plan.actions if isinstance(action, (Drain, Stop, Sleep))}
    woken = {action.replica_id for action in plan.actions if isinstance(action, Wake)}
    live = {S.LOADING, S.WARMING, S.READY}
    counts = Counter(
        view.assignment
        for view in seen.replicas
        if (view.state in live or view.replica_id in woken) and not view.ending and view.replica_id not in ended
    )
    counts.update(action.assignment for action in plan.actions if isinstance(action, Attach))
    return counts


def check_every_action_is_lawful(catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan) -> None:
    views = {view.replica_id: view for view in seen.replicas}
    touched = [action.replica_id for action in plan.actions if not isinstance(action, (Start, Prepare))]
    assert len(touched) == len(set(touched))
    assert not any(views[replica_id].ending for replica_id in touched)
    for action in plan.actions:
        match action:
            case Attach(replica_id, assignment):
                assert views[replica_id].state is S.WARM_IDLE
                assert views[replica_id].assignment is None
                assert seen.versions[assignment.version_id].ready
                history = seen.failures.get(assignment)
                assert history is None or history.retry_at_s <= now_s
            case Drain(replica_id, cause):
                assert views[replica_id].state is S.READY
                assert cause
            case Stop(replica_id, cause):
                assert views[replica_id].state in {S.WARM_IDLE, S.LOADING, S.WARMING, S.ASLEEP}
                assert cause
            case Wake(replica_id, _):
                assert views[replica_id].state is S.ASLEEP
                assert views[replica_id].assignment in plan.wanted
            case Sleep(replica_id, _):
                assert views[replica_id].state is S.READY
            case Prepare(version_id):
                known = seen.versions.get(version_id)
                assert known is None or (known.cause and known.retry_at_s <= now_s)
            case Start():
                history = seen.failures.get(None)
                assert history is None or history.retry_at_s <= now_s


def check_the_bounds_of_deployment_and_node(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    for assignment, count in serving(seen, plan).items():
        entry = catalog.deployments.get(assignment.deployment_id)
        if entry is not None and entry.active and assignment in plan.wanted:
            assert count <= entry.max_replicas
    processes = sum(view.state not in {S.COLD, S.STOPPED} for view in seen.replicas)
    starts = sum(isinstance(action, Start) for action in plan.actions)
    assert starts == 0 or processes + starts <= policy.max_processes


def check_a_deployment_that_serves_goes_on_serving(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    drained = {action.replica_id for action in plan.actions if isinstance(action, Drain)}
    arms = {assignment: arm.name for assignment, (_, arm) in placement.servable(catalog).items()}
    for deployment_id in {assignment.deployment_id for assignment in plan.wanted if arms[assignment] == STABLE}:
        ready = {
            view.replica_id
            for view in seen.replicas
            if view.state is S.READY and not view.ending and view.assignment.deployment_id == deployment_id
        }
        assert not ready or ready - drained


def check_every_missing_replica_is_a_vacancy_with_a_cause(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    placed = serving(seen, plan) + Counter(vacancy.assignment for vacancy in plan.vacancies)
    for assignment, count in plan.wanted.items():
        assert placed[assignment] == count
    assert all(vacancy.cause for vacancy in plan.vacancies)
    assert all(vacancy.failures for vacancy in plan.vacancies if vacancy.assignment in seen.failures)


def check_what_serves_is_not_ended_for_an_equal_that_does_not(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    ended = {action.replica_id for action in plan.actions if isinstance(action, (Drain, Stop))}
    for view in seen.replicas:
        if view.state is S.READY and view.replica_id in ended and view.assignment in plan.wanted:
            rivals = [v for v in seen.replicas if v.assignment == view.assignment and v.state in {S.LOADING, S.WARMING}]
            assert all(rival.ending or rival.replica_id in ended for rival in rivals)


def in_use(catalog: Catalog, seen: Observation, deployment_id: str) -> bool:
    """Whether callers wait or requests run, but for those of testers."""
    pending = any(
        view.pending
        for view in seen.replicas
        if view.assignment
        and view.assignment.deployment_id == deployment_id
        and not placement.without_weight(catalog, view.assignment)
    )
    return pending or seen.uses.get(deployment_id, Use()).is_now


def check_only_the_idle_step_down_and_only_as_far_as_their_policy_says(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    views = {view.replica_id: view for view in seen.replicas}
    for action in plan.actions:
        if isinstance(action, (Drain, Stop, Sleep)) and action.cause.startswith("idle"):
            view = views[action.replica_id]
            entry = catalog.deployments[view.assignment.deployment_id]
            assert not in_use(catalog, seen, entry.id)
            assert kept_replicas(entry, seen.unix_s) == 0
            if view.state is S.READY and view.assignment not in held_asleep(catalog):
                idle_s = now_s - (seen.uses.get(entry.id, Use()).last_s or 0.0)
                reached = [entry.idle.asleep_after_s, entry.idle.warm_after_s, entry.idle.disk_after_s]
                never_used = seen.uses.get(entry.id, Use()).last_s is None
                assert never_used or any(after_s is not None and after_s <= idle_s for after_s in reached)


def check_each_arm_has_its_part_of_what_its_deployment_needs(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    for entry in catalog.deployments.values():
        counts = {
            arm.name: plan.wanted.get(a, 0) for a, (of, arm) in placement.servable(catalog).items() if of is entry
        }
        if counts:
            stable = kept_replicas(entry, seen.unix_s) or int(in_use(catalog, seen, entry.id))
            assert counts[STABLE] >= stable
            others = {arm.name: replicas_for(arm, counts[STABLE]) for arm in entry.arms if arm.name in counts}
            assert counts == others | {STABLE: counts[STABLE]}


def check_a_way_back_is_put_to_sleep_only_behind_a_deployment_that_serves_and_when_its_own_requests_are_over(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    views = {view.replica_id: view for view in seen.replicas}
    ready = Counter(view.assignment for view in seen.replicas if view.state is S.READY and not view.ending)
    for action in plan.actions:
        if isinstance(action, (Sleep, Drain)) and views[action.replica_id].assignment in held_asleep(catalog):
            view = views[action.replica_id]
            assert isinstance(action, Drain) or view.pending == 0
            wanted = {a: n for a, n in plan.wanted.items() if a.deployment_id == view.assignment.deployment_id}
            assert all(ready[assignment] >= count for assignment, count in wanted.items())


def check_waking_comes_before_loading(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    woken = {action.replica_id for action in plan.actions if isinstance(action, Wake)}
    for assignment, count in plan.wanted.items():
        held = [view for view in seen.replicas if view.assignment == assignment and not view.ending]
        missing = count - sum(view.state in {S.LOADING, S.WARMING, S.READY} for view in held)
        asleep = [view for view in held if view.state is S.ASLEEP]
        assert sum(view.replica_id in woken for view in asleep) == min(max(0, missing), len(asleep))


def check_what_sleeps_fits_the_memory_for_it(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    left = {action.replica_id for action in plan.actions if isinstance(action, (Stop, Wake))}
    slept = {action.replica_id for action in plan.actions if isinstance(action, Sleep)}
    asleep = [
        view
        for view in seen.replicas
        if view.replica_id in slept or (view.state is S.ASLEEP and not view.ending and view.replica_id not in left)
    ]
    assert sum(view.memory_bytes for view in asleep) <= policy.asleep_budget_bytes
    assert len(asleep) == len({view.assignment for view in asleep})  # one of each is enough to wake


def check_what_rests_without_a_process_is_told(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    held = {v.assignment for v in seen.replicas if v.state not in {S.COLD, S.STOPPED} and not v.ending}
    resting = {rest.assignment for rest in plan.resting}
    assert resting == placement.servable(catalog).keys() - plan.wanted.keys() - held - held_asleep(catalog)


@settings(max_examples=200, deadline=None)
@given(situations, st.floats(0, 20))
def test_the_rules_of_placement_hold_in_any_situation(situation: tuple, now_s: float) -> None:
    catalog, seen, policy = situation
    plan = placement.plan(catalog, seen, policy, now_s)
    for check in (
        check_every_action_is_lawful,
        check_the_bounds_of_deployment_and_node,
        check_a_deployment_that_serves_goes_on_serving,
        check_every_missing_replica_is_a_vacancy_with_a_cause,
        check_what_serves_is_not_ended_for_an_equal_that_does_not,
        check_only_the_idle_step_down_and_only_as_far_as_their_policy_says,
        check_each_arm_has_its_part_of_what_its_deployment_needs,
        check_a_way_back_is_put_to_sleep_only_behind_a_deployment_that_serves_and_when_its_own_requests_are_over,
        check_waking_comes_before_loading,
        check_what_sleeps_fits_the_memory_for_it,
        check_what_rests_without_a_process_is_told,
    ):
        check(catalog, seen, policy, now_s, plan)


def test_nothing_is_retired_while_an_arm_names_a_version_that_has_not_arrived() -> None:
    old = next(iter(placement.servable(catalog_of(deployment("d1", "v1")))))
    seen = Observation((ReplicaView("r1", S.READY, old),), READY_FILES, {})
    early = catalog_of(deployment("d1", "not-yet"))
    assert placement.plan(early, seen, Policy(warm_idle_floor=0), 0.0).actions == ()


def test_a_version_wanted_by_two_deployments_is_prepared_once() -> None:
    catalog = catalog_of(deployment("d1", "v1"), deployment("d2", "v1", count=2))
    plan = placement.plan(catalog, Observation((), {}, {}), Policy(), 0.0)
    assert [action for action in plan.actions if isinstance(action, Prepare)] == [Prepare("v1")]


def test_the_next_process_is_for_the_owner_that_has_fewest_replicas() -> None:
    greedy, called = deployment("d1", "v3", count=3), deployment("d2", "v1", count=0)
    for catalog in (catalog_of(greedy, called), catalog_of(called, greedy)):
        theirs, ours = sorted(placement.servable(catalog), key=lambda assignment: assignment.deployment_id)
        views = ReplicaView("r1", S.READY, theirs), ReplicaView("r2", S.WARM_IDLE)
        seen = Observation(views, READY_FILES, {}, {"d2": Use(0.0, is_now=True)})
        plan = placement.plan(catalog, seen, Policy(warm_idle_floor=0, max_processes=2), 0.0)
        assert plan.actions == (Attach("r2", ours),)


def test_the_floor_waits_until_a_replacement_is_ready() -> None:
    catalog = catalog_of(deployment("d1", "v1"))
    (assignment,) = placement.servable(catalog)
    for state, starts in {S.LOADING: 0, S.WARMING: 0, S.READY: 2}.items():
        seen = Observation((ReplicaView("r1", state, assignment),), READY_FILES, {})
        plan = placement.plan(catalog, seen, Policy(warm_idle_floor=2), 0.0)
        assert plan.actions == (Start(),) * starts


histories = st.one_of(st.none(), st.builds(History, st.integers(1, 40), st.just("x"), st.floats(0, 100)))


@given(histories, st.floats(0, 2 * STABLE_S), st.floats(0, 1000), st.floats(0, 1, exclude_max=True))
def test_back_off_is_exponential_capped_jittered_and_forgotten_after_stability(
    history: History | None, healthy_s: float, now_s: float, draw: float
) -> None:
    after = after_failure(history, cause="y", healthy_s=healthy_s, now_s=now_s, draw=draw)
    assert after.cause == "y"
    delay_s = after.retry_at_s - now_s
    if history is None or healthy_s >= STABLE_S:
        assert (after.failures, delay_s) == (1, 0)
    else:
        assert after.failures == history.failures + 1
        full_s = min(CAP_S, BASE_S * 2 ** (history.failures - 1))
        assert full_s / 2 - 1e-9 <= delay_s <= full_s + 1e-9


def sleepers(*last_used_s: float, memory_bytes: int = 10) -> tuple[Catalog, Observation]:
    """A deployment and its sleeping replica for each moment of last use."""
    versions = {f"v{n}": msgspec.structs.replace(VERSIONS["v1"], id=f"v{n}") for n in range(len(last_used_s))}
    entries = [
        deployment(f"d{n}", f"v{n}", count=0, idle=IdlePolicy(asleep_after_s=5)) for n in range(len(last_used_s))
    ]
    catalog = msgspec.structs.replace(catalog_of(*entries), versions=versions)
    views = [
        ReplicaView(f"r{n}", S.ASLEEP, assignment, memory_bytes=memory_bytes)
        for n, assignment in enumerate(placement.servable(catalog))
    ]
    uses = {f"d{n}": Use(last_s) for n, last_s in enumerate(last_used_s)}
    files = {name: VersionView(ready=True) for name in versions}
    return catalog, Observation(tuple(views), files, {}, uses)


def test_the_least_recently_used_sleeper_steps_down_first_when_memory_is_short() -> None:
    catalog, seen = sleepers(30, 10, 20)
    plan = placement.plan(catalog, seen, Policy(warm_idle_floor=0, asleep_budget_bytes=25), 100.0)
    assert [action.replica_id for action in plan.actions if isinstance(action, Stop)] == ["r1"]


def test_the_least_recently_used_sleeper_gives_its_process_to_one_that_callers_wait_for() -> None:
    catalog, seen = sleepers(30, 10)
    wanted = deployment("new", "v0")
    catalog = msgspec.structs.replace(catalog, deployments=catalog.deployments | {"new": wanted})
    policy = Policy(warm_idle_floor=0, max_processes=2, asleep_budget_bytes=100)
    plan = placement.plan(catalog, seen, policy, 100.0)
    assert [action.replica_id for action in plan.actions if isinstance(action, Stop)] == ["r1"]
    assert [vacancy.cause for vacancy in plan.vacancies] == ["waits for a warm idle process"]


def test_one_sleeper_of_a_version_is_enough_the_others_end() -> None:
    catalog, seen = sleepers(10)
    (asleep,) = seen.replicas
    awake = [msgspec.structs.replace(asleep, replica_id=name, state=S.READY) for name in ("r8", "r9")]
    policy = Policy(warm_idle_floor=0, asleep_budget_bytes=100)
    for views, kinds in (((asleep, awake[0]), [Drain]), (tuple(awake), [Drain, Sleep])):
        plan = placement.plan(catalog, msgspec.structs.replace(seen, replicas=views), policy, 100.0)
        assert [type(action) for action in plan.actions] == kinds


def test_any_number_of_callers_wakes_one_replica_and_loads_nothing() -> None:
    catalog, seen = sleepers(10)
    called = msgspec.structs.replace(seen, uses={"d0": Use(10.0, is_now=True)})
    plan = placement.plan(catalog, called, Policy(warm_idle_floor=0, asleep_budget_bytes=100), 100.0)
    assert [type(action) for action in plan.actions] == [Wake]
    waking = msgspec.structs.replace(seen.replicas[0], state=S.WARMING)
    again = msgspec.structs.replace(called, replicas=(waking,))
    assert placement.plan(catalog, again, Policy(warm_idle_floor=0, asleep_budget_bytes=100), 100.1).actions == ()


def test_a_deployment_steps_down_tier_by_tier_and_one_process_is_kept_for_all_that_rest_warm() -> None:
    idle = IdlePolicy(asleep_after_s=5, warm_after_s=10, disk_after_s=20)
    catalog = catalog_of(deployment("d1", "v1", count=0, idle=idle), deployment("d2", "v2", count=0, idle=idle))
    policy = Policy(warm_idle_floor=0, asleep_budget_bytes=100)
    one, two = placement.servable(catalog)
    uses = {"d1": Use(0.0), "d2": Use(0.0)}

    def plan_for(now_s: float, *views: ReplicaView) -> Plan:
        return placement.plan(catalog, Observation(views, READY_FILES, {}, uses), policy, now_s)

    ready = ReplicaView("r1", S.READY, one), ReplicaView("r2", S.READY, two)
    assert plan_for(4.9, *ready).actions == ()
    assert plan_for(4.9, *ready).next_at_s == 5
    assert {type(action) for action in plan_for(5, *ready).actions} == {Sleep}
    asleep = [msgspec.structs.replace(view, state=S.ASLEEP) for view in ready]
    assert plan_for(9, *asleep).actions == ()
    assert [action.replica_id for action in plan_for(10, *asleep).actions] == ["r1", "r2"]
    assert plan_for(10.5).actions == (Start(),)
    assert set(plan_for(10.5).resting) == {Resting(one, Tier.WARM), Resting(two, Tier.WARM)}
    spare = ReplicaView("r3", S.WARM_IDLE)
    assert plan_for(19, spare).actions == ()
    assert [type(action) for action in plan_for(20, spare).actions] == [Stop]
    assert set(plan_for(21).resting) == {Resting(one, Tier.DISK), Resting(two, Tier.DISK)}
    assert plan_for(21).next_at_s is None
