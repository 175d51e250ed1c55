from collections import Counter

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Arm, Catalog, DeploymentEntry, EngineSettings, VersionEntry
from dataplane.contracts.replica import ReplicaState as S
from dataplane.fleet import placement
from dataplane.fleet.backoff import BASE_S, CAP_S, STABLE_S, History, after_failure
from dataplane.fleet.placement import (
    Assignment,
    Attach,
    Drain,
    Observation,
    Plan,
    Policy,
    Prepare,
    ReplicaView,
    Start,
    Stop,
    VersionView,
)

VERSIONS = {
    name: VersionEntry(
        id=name,
        tenant_id=owner,
        model="m",
        number=1,
        digest=f"digest-{name}",
        files=(),
        context_tokens=1,
        created_at_ms=0,
    )
    for name, owner in {"v1": "acme", "v2": "acme", "v3": "evil"}.items()
}
READY_FILES = {name: VersionView(ready=True) for name in VERSIONS}


def deployment(
    name: str, *versions: str, count: int = 1, most: int = 3, active: bool = True, **engine: int
) -> DeploymentEntry:
    return DeploymentEntry(
        id=name,
        tenant_id="acme",
        name=name,
        active=active,
        arms=tuple(Arm(version_id=version, weight=100 // len(versions)) for version in versions),
        grants={},
        engine=EngineSettings(**engine),
        min_replicas=count,
        max_replicas=most,
    )


def catalog_of(*deployments: DeploymentEntry) -> Catalog:
    return msgspec.structs.replace(
        contract.empty(), number=1, versions=VERSIONS, deployments={entry.id: entry for entry in deployments}
    )


deployments = st.builds(
    lambda name, versions, count, most, active, seqs: deployment(
        name, *versions, count=count, most=most, active=active, max_num_seqs=seqs
    ),
    st.sampled_from(["d1", "d2"]),
    st.lists(st.sampled_from(["v1", "v2", "v3"]), min_size=1, max_size=2, unique=True),
    st.sampled_from([1, 2, 3, 0]),
    st.sampled_from([3, 2, 1, 0]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([8, 16]),
)
catalogs = st.lists(deployments, min_size=1, max_size=2, unique_by=lambda entry: entry.id).map(
    lambda entries: catalog_of(*entries)
)
policies = st.builds(Policy, warm_idle_floor=st.integers(0, 2), max_processes=st.integers(0, 12))


@st.composite
def observations(draw: st.DrawFn, catalog: Catalog) -> Observation:
    known = [*placement.wanted(catalog), *placement.wanted(draw(catalogs))]
    views = []
    for number in range(draw(st.integers(0, 8))):
        state = draw(st.sampled_from([*S, S.READY, S.READY, S.READY, S.WARM_IDLE, S.WARM_IDLE]))
        held = known and (state in {S.LOADING, S.WARMING, S.READY, S.DRAINING} or draw(st.booleans()))
        assignment = draw(st.sampled_from(known)) if held else None
        if assignment is None and state in {S.LOADING, S.WARMING, S.READY, S.DRAINING}:
            state = S.STARTING
        views.append(
            ReplicaView(f"r{number}", state, assignment, ending=draw(st.sampled_from([False, False, False, True])))
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
    )


situations = catalogs.flatmap(lambda catalog: st.tuples(st.just(catalog), observations(catalog), policies))


def serving(seen: Observation, plan: Plan) -> Counter[Assignment]:
    """Replicas by assignment once ``plan`` is carried out."""
    ended = {action.replica_id for action in plan.actions if isinstance(action, (Drain, Stop))}
    live = {S.LOADING, S.WARMING, S.READY}
    counts = Counter(
        view.assignment
        for view in seen.replicas
        if view.state in live and not view.ending and view.replica_id not in ended
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
                assert views[replica_id].state in {S.WARM_IDLE, S.LOADING, S.WARMING}
                assert cause
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
        if entry is not None and entry.active and assignment in placement.wanted(catalog):
            assert count <= entry.max_replicas
    processes = sum(view.state not in {S.COLD, S.STOPPED} for view in seen.replicas)
    starts = sum(isinstance(action, Start) for action in plan.actions)
    assert starts == 0 or processes + starts <= policy.max_processes


def check_a_deployment_that_serves_goes_on_serving(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    drained = {action.replica_id for action in plan.actions if isinstance(action, Drain)}
    for deployment_id in {assignment.deployment_id for assignment in placement.wanted(catalog)}:
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
    for assignment, count in placement.wanted(catalog).items():
        assert placed[assignment] == count
    assert all(vacancy.cause for vacancy in plan.vacancies)


def check_what_serves_is_not_ended_for_an_equal_that_does_not(
    catalog: Catalog, seen: Observation, policy: Policy, now_s: float, plan: Plan
) -> None:
    ended = {action.replica_id for action in plan.actions if isinstance(action, (Drain, Stop))}
    wanted = placement.wanted(catalog)
    for view in seen.replicas:
        if view.state is S.READY and view.replica_id in ended and view.assignment in wanted:
            rivals = [v for v in seen.replicas if v.assignment == view.assignment and v.state in {S.LOADING, S.WARMING}]
            assert all(rival.ending or rival.replica_id in ended for rival in rivals)


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
    ):
        check(catalog, seen, policy, now_s, plan)


def test_nothing_is_retired_while_an_arm_names_a_version_that_has_not_arrived() -> None:
    old = next(iter(placement.wanted(catalog_of(deployment("d1", "v1")))))
    seen = Observation((ReplicaView("r1", S.READY, old),), READY_FILES, {})
    early = catalog_of(deployment("d1", "not-yet"))
    assert placement.plan(early, seen, Policy(warm_idle_floor=0), 0.0).actions == ()


def test_a_version_wanted_by_two_deployments_is_prepared_once() -> None:
    catalog = catalog_of(deployment("d1", "v1"), deployment("d2", "v1", count=2))
    plan = placement.plan(catalog, Observation((), {}, {}), Policy(), 0.0)
    assert [action for action in plan.actions if isinstance(action, Prepare)] == [Prepare("v1")]


def test_the_floor_waits_until_a_replacement_is_ready() -> None:
    catalog = catalog_of(deployment("d1", "v1"))
    (assignment,) = placement.wanted(catalog)
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


class Node(RuleBasedStateMachine):
    """A simulated node that carries every plan out, crashes at will, and must settle once left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog = catalog_of()
        self.policy = Policy(warm_idle_floor=1, max_processes=20)
        self.replicas: dict[str, ReplicaView] = {}
        self.versions: dict[str, VersionView] = {}
        self.failures: dict[Assignment | None, History] = {}
        self.held: dict[str, set[str]] = {}
        self.now_s = 0.0
        self.minted = 0

    @initialize(floor=st.integers(0, 2))
    def choose(self, floor: int) -> None:
        self.policy = Policy(warm_idle_floor=floor, max_processes=20)

    def step(self) -> Plan:
        seen = Observation(tuple(self.replicas.values()), self.versions, self.failures)
        plan = placement.plan(self.catalog, seen, self.policy, self.now_s)
        for action in plan.actions:
            self.carry_out(action)
        return plan

    def carry_out(self, action: placement.Action) -> None:
        match action:
            case Start():
                self.minted += 1
                self.replicas[f"r{self.minted}"] = ReplicaView(f"r{self.minted}", S.STARTING)
            case Prepare(version_id):
                self.versions[version_id] = VersionView(ready=False)
            case Attach(replica_id, assignment):
                self.replicas[replica_id] = ReplicaView(replica_id, S.LOADING, assignment)
                self.held.setdefault(replica_id, set()).add(assignment.owner_tenant_id)
            case Drain(replica_id, _):
                view = self.replicas[replica_id]
                self.replicas[replica_id] = ReplicaView(replica_id, S.DRAINING, view.assignment, ending=True)
            case Stop(replica_id, _):
                del self.replicas[replica_id]

    def advance(self) -> None:
        """Let everything that is under way reach its next state."""
        following = {S.STARTING: S.WARM_IDLE, S.LOADING: S.WARMING, S.WARMING: S.READY}
        for replica_id, view in list(self.replicas.items()):
            if view.state is S.DRAINING:
                del self.replicas[replica_id]
            elif view.state in following:
                self.replicas[replica_id] = msgspec.structs.replace(view, state=following[view.state])
        self.versions = {name: VersionView(ready=True) for name in self.versions}

    @rule(catalog=catalogs)
    def publish(self, catalog: Catalog) -> None:
        self.catalog = catalog

    @rule()
    def go_on(self) -> None:
        self.step()

    @rule()
    def progress(self) -> None:
        self.advance()

    @rule(seconds=st.floats(0, 90))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), healthy_s=st.floats(0, 90))
    def crash(self, data: st.DataObject, healthy_s: float) -> None:
        view = self.replicas.pop(data.draw(st.sampled_from(sorted(self.replicas))) if self.replicas else "")
        self.failures[view.assignment] = after_failure(
            self.failures.get(view.assignment), cause="crashed", healthy_s=healthy_s, now_s=self.now_s, draw=0.5
        )

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def lose_a_blob(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.versions)))
        self.versions[name] = VersionView(ready=False, cause="blob is missing", retry_at_s=self.now_s + 5)

    @invariant()
    def no_process_ever_held_two_owners(self) -> None:
        assert all(len(owners) == 1 for owners in self.held.values())

    def teardown(self) -> None:
        """Left alone, the node reaches what the catalog wants within a bounded number of rounds, and then rests."""
        for _ in range(40):
            plan = self.step()
            self.advance()
            self.now_s = self.now_s if plan.next_at_s is None else max(self.now_s, plan.next_at_s)
        assert self.step() == Plan(actions=(), vacancies=(), next_at_s=None)
        ready = Counter(view.assignment for view in self.replicas.values() if view.state is S.READY)
        assert ready == Counter(placement.wanted(self.catalog))
        idle = [view for view in self.replicas.values() if view.state is S.WARM_IDLE]
        assert len(idle) == self.policy.warm_idle_floor
        assert len(self.replicas) == ready.total() + len(idle)


Node.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestNode = Node.TestCase
