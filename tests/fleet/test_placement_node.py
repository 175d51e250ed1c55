"""The planner on a simulated node."""

from collections import Counter

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from planning import catalog_of, catalogs, held_asleep

from dataplane.contracts.catalog import Catalog
from dataplane.contracts.replica import ReplicaState as S
from dataplane.contracts.replica import Tier
from dataplane.fleet import placement
from dataplane.fleet.backoff import History, after_failure
from dataplane.fleet.plan import (
    Action,
    Assignment,
    Attach,
    Drain,
    Observation,
    Plan,
    Policy,
    Prepare,
    ReplicaView,
    Sleep,
    Start,
    Stop,
    VersionView,
    Wake,
)
from dataplane.fleet.tiers import Use


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
        self.verified: set[str] = set()
        self.uses: dict[str, Use] = {}
        self.now_s = 0.0
        self.minted = 0

    @initialize(floor=st.integers(0, 2), budget_bytes=st.integers(0, 12))
    def choose(self, floor: int, budget_bytes: int) -> None:
        self.policy = Policy(warm_idle_floor=floor, max_processes=20, asleep_budget_bytes=budget_bytes)

    def step(self) -> Plan:
        seen = Observation(tuple(self.replicas.values()), self.versions, self.failures, self.uses)
        plan = placement.plan(self.catalog, seen, self.policy, self.now_s)
        for action in plan.actions:
            self.carry_out(action)
        return plan

    def carry_out(self, action: Action) -> None:
        match action:
            case Start():
                self.minted += 1
                self.replicas[f"r{self.minted}"] = ReplicaView(f"r{self.minted}", S.STARTING)
            case Prepare(version_id):
                self.versions[version_id] = VersionView(ready=False)
            case Attach(replica_id, assignment):
                self.replicas[replica_id] = ReplicaView(replica_id, S.LOADING, assignment, memory_bytes=5)
                self.held.setdefault(replica_id, set()).add(assignment.owner_tenant_id)
            case Wake(replica_id, _):
                self.replicas[replica_id] = msgspec.structs.replace(self.replicas[replica_id], state=S.WARMING)
            case Sleep(replica_id, _):
                self.verified.discard(replica_id)
                self.replicas[replica_id] = msgspec.structs.replace(self.replicas[replica_id], state=S.ASLEEP)
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
                if view.state is S.WARMING:
                    self.verified.add(replica_id)
                    self.uses[view.assignment.deployment_id] = msgspec.structs.replace(
                        self.uses.get(view.assignment.deployment_id, Use()), last_s=self.now_s
                    )
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

    @rule(deployment_id=st.sampled_from(["d1", "d2"]), waiting=st.booleans())
    def call(self, deployment_id: str, waiting: bool) -> None:
        self.uses[deployment_id] = Use(self.now_s, is_now=waiting)

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

    @invariant()
    def nothing_is_ready_but_by_a_generation_since_it_last_slept(self) -> None:
        assert all(view.state is not S.READY or view.replica_id in self.verified for view in self.replicas.values())

    @invariant()
    def what_sleeps_fits_its_budget(self) -> None:
        asleep = [view for view in self.replicas.values() if view.state is S.ASLEEP]
        assert sum(view.memory_bytes for view in asleep) <= self.policy.asleep_budget_bytes

    def teardown(self) -> None:
        """Left alone, the node reaches what the catalog wants within a bounded number of rounds, and then rests."""
        for _ in range(40):
            plan = self.step()
            self.advance()
            self.now_s = self.now_s if plan.next_at_s is None else max(self.now_s, plan.next_at_s)
        plan = self.step()
        assert (plan.actions, plan.vacancies, plan.next_at_s) == ((), (), None)
        ready = Counter(view.assignment for view in self.replicas.values() if view.state is S.READY)
        assert ready == Counter(plan.wanted)
        asleep = {view.assignment for view in self.replicas.values() if view.state is S.ASLEEP}
        resting = {rest.assignment for rest in plan.resting}
        held = held_asleep(self.catalog)
        assert (asleep | resting) - held == placement.servable(self.catalog).keys() - plan.wanted.keys() - held
        assert not resting & (asleep | held)
        idle = [view for view in self.replicas.values() if view.state is S.WARM_IDLE]
        assert len(idle) == max(self.policy.warm_idle_floor, any(rest.tier is Tier.WARM for rest in plan.resting))
        assert len(self.replicas) == ready.total() + len(asleep) + len(idle)


Node.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestNode = Node.TestCase
