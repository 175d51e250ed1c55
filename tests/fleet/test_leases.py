"""Leases against a model of replicas that are late, lose messages, come, die and are used as they please."""

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import TenantLoad
from dataplane.contracts.leases import Lease
from dataplane.contracts.replica import SetShares
from dataplane.fleet.leases import Leases, Seen

BLOCK, POOL, CONTEXT = 8, 64, 16
TENANTS = ("acme", "evil")
GROWTH_BLOCKS = 8
places = st.integers(0, 3)
tenant_ids = st.sampled_from(TENANTS)
shares = st.builds(
    lambda guarantee, more, capped: Share(guarantee * BLOCK, (guarantee + more) * BLOCK if capped else None),
    st.integers(0, 32),
    st.integers(1, 80),
    st.sampled_from([True, True, True, False]),
)


@dataclass
class Tenant:
    """A tenant in one engine. Blocks."""

    guarantee: int
    cap: int
    capped: bool
    owned: int = 0
    running: int = 0
    waiting: int = 0
    head: int = 0

    def set_lease(self, lease: Lease) -> None:
        """As :class:`dataplane.engine.tenant_budget.TenantBudget` does."""
        self.guarantee = max(lease.guarantee_blocks, min(lease.kept_guarantee_blocks, self.guarantee, self.owned))
        self.capped = lease.cap_blocks is not None
        kept = min(lease.kept_cap_blocks, self.cap, self.owned + self.running)
        self.cap = POOL if lease.cap_blocks is None else min(POOL, max(lease.cap_blocks, kept))
        self.owned = min(self.owned, self.cap)
        self.running = min(self.running, self.owned)

    def load(self, tenant_id: str) -> TenantLoad:
        return TenantLoad(
            tenant_id, self.guarantee, self.cap, 1, self.owned, 0, self.running, self.waiting, 0.0,
            head_tokens=self.head * BLOCK,
        )  # fmt: skip


@dataclass
class Replica:
    """A replica; ``on_the_way`` is what it was told and has not heard, ``seen`` what the fleet knows of it."""

    id: str
    attached: SetShares
    seen: Seen
    serves: bool = True
    lost: bool = False
    loaded: bool = False
    number: int = 0
    tenants: dict[str, Tenant] = field(default_factory=dict)
    on_the_way: list[SetShares] = field(default_factory=list)
    late: list[SetShares] = field(default_factory=list)

    def take(self, message: SetShares) -> None:
        if message.number < self.number:
            return
        self.number = message.number
        for tenant_id, lease in message.leases.items():
            self.tenants.setdefault(tenant_id, Tenant(0, POOL, False)).set_lease(lease)
        self.tenants = {id_: self.tenants[id_] for id_ in message.leases}

    def look(self) -> None:
        """The fleet hears what it says."""
        tenants = {id_: tenant.load(id_) for id_, tenant in self.tenants.items()}
        pool = POOL if self.loaded else 0
        self.seen = Seen(self.id, self.serves, False, self.lost, self.number, pool, CONTEXT, tenants)

    def seen_now(self) -> Seen:
        takes = self.loaded and not self.on_the_way
        return msgspec.structs.replace(self.seen, serves=self.serves, takes=takes, lost=self.lost)

    def _to_come(self, tenant_id: str) -> list[Lease]:
        messages = [message for message in [*self.on_the_way, *self.late] if message.number >= self.number]
        messages += [] if self.loaded else [self.attached]
        return [message.leases[tenant_id] for message in messages if tenant_id in message.leases]

    def most_cap(self, tenant_id: str) -> int:
        """What is in force or on its way; what a lease keeps raises nothing."""
        tenant = self.tenants.get(tenant_id)
        to_come = [POOL if lease.cap_blocks is None else lease.cap_blocks for lease in self._to_come(tenant_id)]
        return max([tenant.cap if tenant else 0, *to_come])

    def most_guarantee(self, tenant_id: str) -> int:
        tenant = self.tenants.get(tenant_id)
        to_come = [lease.guarantee_blocks for lease in self._to_come(tenant_id)]
        return max([tenant.guarantee if tenant else 0, *to_come])


class LeaseMachine(RuleBasedStateMachine):
    """What is promised may be lowered at any time; beyond it nothing grows, and only then is anything in use cut."""

    @initialize(granted=st.tuples(shares, shares))
    def begin(self, granted: tuple[Share, Share]) -> None:
        self.leases = Leases(BLOCK)
        self.grants = dict(zip(TENANTS, granted, strict=True))
        self.replicas: dict[str, Replica] = {}
        self.count = 0
        self.allowed = {(kind, id_): self.whole(kind, id_) for kind in ("cap", "guarantee") for id_ in TENANTS}

    def whole(self, kind: str, tenant_id: str) -> int:
        share = self.grants[tenant_id]
        tokens = share.guarantee_tokens if kind == "guarantee" else share.cap_tokens
        return 10**6 if tokens is None else tokens // BLOCK

    def most(self, kind: str, tenant_id: str) -> int:
        return sum(getattr(replica, f"most_{kind}")(tenant_id) for replica in self.replicas.values())

    def at(self, place: int) -> Replica | None:
        alive = list(self.replicas.values())
        return alive[place % len(alive)] if alive else None

    # what happens to replicas

    @precondition(lambda self: len(self.replicas) < 4)
    @rule(wanted=st.integers(1, 4))
    def one_comes(self, wanted: int) -> None:
        self.count += 1
        id_ = f"r{self.count}"
        attached = SetShares(dict(self.grants), self.leases.begin(id_, self.grants, wanted))
        self.replicas[id_] = Replica(id_, attached, Seen(id_, serves=True, takes=False))

    @rule(place=places)
    def it_is_loaded(self, place: int) -> None:
        replica = self.at(place)
        if replica is not None and not replica.loaded:
            replica.loaded = True
            replica.take(replica.attached)
            replica.look()

    @rule(place=places)
    def it_is_known_to_be_gone(self, place: int) -> None:
        if (replica := self.at(place)) is not None:
            del self.replicas[replica.id]

    @rule(place=places)
    def it_falls_asleep_or_wakes(self, place: int) -> None:
        if (replica := self.at(place)) is not None:
            replica.serves = not replica.serves

    @rule(
        place=places,
        tenant_id=tenant_ids,
        owned=st.integers(0, POOL),
        running=st.integers(0, 4),
        head=st.integers(0, 40),
    )
    def its_use_changes(self, place: int, tenant_id: str, owned: int, running: int, head: int) -> None:
        replica = self.at(place)
        if replica is not None and (tenant := replica.tenants.get(tenant_id)) is not None:
            tenant.owned = min(owned, tenant.cap)
            tenant.running = min(running, tenant.owned)
            tenant.head, tenant.waiting = head, min(head, 1)

    # what the fleet hears and says

    @rule(place=places)
    def it_is_looked_at(self, place: int) -> None:
        if (replica := self.at(place)) is not None:
            replica.look()

    @rule()
    def a_round(self) -> None:
        messages = self.leases.round(self.grants, [replica.seen_now() for replica in self.replicas.values()])
        for id_, message in messages.items():
            replica = self.replicas[id_]
            assert replica.loaded
            assert not replica.on_the_way
            self.check_what_is_cut(replica, message)
            replica.on_the_way.append(message)
            replica.lost = False

    def check_what_is_cut(self, replica: Replica, message: SetShares) -> None:
        alone = len(self.replicas) == 1
        for tenant_id, lease in message.leases.items():
            tenant = replica.tenants.get(tenant_id)
            if tenant is None or alone:
                continue
            if lease.cap_blocks is not None and max(lease.cap_blocks, lease.kept_cap_blocks) < tenant.owned:
                assert self.most("cap", tenant_id) > self.whole("cap", tenant_id), "cut within the share"
            if lease.most_guarantee_blocks < min(tenant.owned, tenant.guarantee):
                assert self.most("guarantee", tenant_id) > self.whole("guarantee", tenant_id)

    @rule(place=places)
    def it_hears(self, place: int) -> None:
        if (replica := self.at(place)) is not None and replica.on_the_way:
            replica.take(replica.on_the_way.pop())
            replica.look()

    @rule(place=places, arrives=st.booleans())
    def it_does_not_answer_in_time(self, place: int, arrives: bool) -> None:
        if (replica := self.at(place)) is not None and replica.on_the_way:
            message = replica.on_the_way.pop()
            replica.lost = True
            if arrives:
                replica.late.append(message)

    @rule(place=places)
    def what_was_late_arrives(self, place: int) -> None:
        if (replica := self.at(place)) is not None and replica.late:
            replica.take(replica.late.pop())

    @rule(tenant_id=tenant_ids, share=shares)
    def a_share_is_changed(self, tenant_id: str, share: Share) -> None:
        self.grants = self.grants | {tenant_id: share}

    # what always holds

    @invariant()
    def parts_in_force_or_on_their_way_never_pass_the_share_but_where_it_was_lowered(self) -> None:
        for (kind, tenant_id), allowed in self.allowed.items():
            most = self.most(kind, tenant_id)
            whole = self.whole(kind, tenant_id)
            assert most <= max(allowed, whole), (kind, tenant_id)
            self.allowed[kind, tenant_id] = max(most, whole)

    @invariant()
    def guarantees_fit_every_pool(self) -> None:
        for replica in self.replicas.values():
            if replica.loaded:
                assert sum(replica.most_guarantee(tenant_id) for tenant_id in TENANTS) <= POOL


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


# demand is followed


def rounds(leases: Leases, grants: dict[str, Share], replicas: list[Replica], count: int) -> list[int]:
    """Let the fleet hear and tell everybody ``count`` times; return how many messages each round took."""
    numbers = []
    for _ in range(count):
        for replica in replicas:
            replica.look()
        messages = leases.round(grants, [replica.seen_now() for replica in replicas])
        for id_, message in messages.items():
            next(replica for replica in replicas if replica.id == id_).take(message)
        numbers.append(len(messages))
    return numbers


def make(leases: Leases, grants: dict[str, Share], count: int) -> list[Replica]:
    made = []
    for number in range(count):
        id_ = f"r{number}"
        attached = SetShares(grants, leases.begin(id_, grants, count))
        made.append(Replica(id_, attached, Seen(id_, serves=True, takes=False), loaded=True))
        made[-1].take(attached)
    rounds(leases, grants, made, 3)
    return made


loads = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 3)), min_size=2, max_size=4)


@given(st.integers(8, 200), loads)
@settings(max_examples=60, deadline=None)
def test_within_four_rounds_every_replica_has_room_for_its_next_request_where_the_share_has_it_and_then_all_is_quiet(
    cap: int, use: list[tuple[int, int, int]]
) -> None:
    leases, grants = Leases(BLOCK), {"acme": Share(cap_tokens=cap * BLOCK)}
    replicas = make(leases, grants, len(use))
    for replica, (owned, head, waiting) in zip(replicas, use, strict=True):
        tenant = replica.tenants["acme"]
        tenant.owned = min(owned, tenant.cap)
        tenant.running = min(tenant.owned, 1)
        tenant.head, tenant.waiting = (head, waiting) if waiting and head else (0, 0)
    firsts = [
        min(POOL, tenant.owned + tenant.running + tenant.head)
        for tenant in (replica.tenants["acme"] for replica in replicas)
    ]
    rounds(leases, grants, replicas, 4)
    caps = [replica.tenants["acme"].cap for replica in replicas]
    assert sum(caps) <= cap
    if sum(firsts) <= cap:
        assert all(mine >= first for mine, first in zip(caps, firsts, strict=True))
        assert rounds(leases, grants, replicas, 3)[-1] == 0


@given(st.integers(20, 120), loads, st.integers(1, 19))
@settings(max_examples=60, deadline=None)
def test_a_lowered_cap_is_in_force_within_four_rounds_and_costs_nobody_who_stays_within_it_a_block(
    cap: int, use: list[tuple[int, int, int]], lowered: int
) -> None:
    leases, grants = Leases(BLOCK), {"acme": Share(cap_tokens=cap * BLOCK)}
    replicas = make(leases, grants, len(use))
    owned = []
    for replica, (want, head, waiting) in zip(replicas, use, strict=True):
        tenant = replica.tenants["acme"]
        tenant.owned = min(want, tenant.cap)
        tenant.running = min(tenant.owned, 1)
        tenant.head, tenant.waiting = (head, waiting) if waiting and head else (0, 0)
        owned.append(tenant.owned)
    grants = {"acme": Share(cap_tokens=lowered * BLOCK)}
    rounds(leases, grants, replicas, 1)
    for replica, had in zip(replicas, owned, strict=True):
        tenant = replica.tenants["acme"]
        if len(replicas) > 1:
            assert tenant.owned == had, "the first round takes nothing away"
        assert tenant.cap <= max(tenant.owned + tenant.running, lowered), "and lets nothing more in"
    rounds(leases, grants, replicas, 3)
    assert sum(replica.tenants["acme"].cap for replica in replicas) <= lowered
    if sum(owned) <= lowered:
        assert [replica.tenants["acme"].owned for replica in replicas] == owned


def test_requests_that_fit_one_at_a_time_have_their_turns_one_after_the_other_and_none_is_passed_over() -> None:
    leases, grants = Leases(BLOCK), {"acme": Share(cap_tokens=40 * BLOCK)}
    replicas = make(leases, grants, 3)
    served = [0, 0, 0]
    for replica in replicas:
        replica.tenants["acme"].head, replica.tenants["acme"].waiting = 30, 5
    for _ in range(60):
        rounds(leases, grants, replicas, 1)
        for place, replica in enumerate(replicas):
            tenant = replica.tenants["acme"]
            if tenant.running:
                tenant.running = tenant.owned = 0  # it ran for a round
            elif tenant.cap >= tenant.head:
                tenant.running, tenant.owned = 1, tenant.head
                served[place] += 1
    assert min(served) >= 3
    assert max(served) - min(served) <= 1


def test_a_replica_that_dies_leaves_its_part_to_the_others_and_one_that_comes_gets_one() -> None:
    leases, grants = Leases(BLOCK), {"acme": Share(guarantee_tokens=40 * BLOCK, cap_tokens=40 * BLOCK)}
    replicas = make(leases, grants, 2)
    assert [replica.tenants["acme"].cap for replica in replicas] == [20, 20]
    silent, alive = replicas
    silent.look()
    for _ in range(5):
        alive.look()
        assert leases.round(grants, [silent.seen_now(), alive.seen_now()]) == {}
    rounds(leases, grants, [alive], 2)
    assert (alive.tenants["acme"].cap, alive.tenants["acme"].guarantee) == (40, 40)
    attached = SetShares(grants, leases.begin("new", grants, 2))
    assert attached.leases["acme"] == Lease(0, 0), "nothing is free yet"
    new = Replica("new", attached, Seen("new", serves=True, takes=False), loaded=True)
    new.take(attached)
    rounds(leases, grants, [alive, new], 3)
    assert [replica.tenants["acme"].cap for replica in (alive, new)] == [20, 20]
    assert [replica.tenants["acme"].guarantee for replica in (alive, new)] == [20, 20]


def test_who_drains_or_sleeps_gives_up_what_it_does_not_use() -> None:
    leases, grants = Leases(BLOCK), {"acme": Share(cap_tokens=40 * BLOCK)}
    replicas = make(leases, grants, 2)
    draining, other = replicas
    draining.tenants["acme"].owned = draining.tenants["acme"].running = 2
    draining.serves = False
    rounds(leases, grants, replicas, 3)
    assert draining.tenants["acme"].cap == 2 + GROWTH_BLOCKS * 2
    assert other.tenants["acme"].cap == 40 - draining.tenants["acme"].cap


def test_guarantees_go_where_their_tenants_are_as_far_as_each_pool_has_room() -> None:
    leases = Leases(BLOCK)
    grants = {id_: Share(guarantee_tokens=40 * BLOCK) for id_ in TENANTS}
    replicas = make(leases, grants, 2)
    for replica, tenant_id in zip(replicas, TENANTS, strict=True):
        replica.tenants[tenant_id].owned = 36
        replica.tenants[tenant_id].running = 1
    rounds(leases, grants, replicas, 4)
    parts = [[replica.tenants[tenant_id].guarantee for tenant_id in TENANTS] for replica in replicas]
    assert parts == [[35, 5], [5, 35]], "a floor is left where nobody is"
    for replica in replicas:
        replica.tenants["acme"].owned = replica.tenants["evil"].owned = 30
    rounds(leases, grants, replicas, 4)
    for replica in replicas:
        assert sum(tenant.guarantee for tenant in replica.tenants.values()) <= POOL - CONTEXT


def test_a_change_of_weight_or_epoch_is_told_with_the_parts_as_they_are() -> None:
    leases, grants = Leases(BLOCK), {"acme": Share(cap_tokens=40 * BLOCK)}
    replicas = make(leases, grants, 2)
    changed = {"acme": Share(cap_tokens=40 * BLOCK, weight=3, cache_epoch=1)}
    for replica in replicas:
        replica.look()
    messages = leases.round(changed, [replica.seen_now() for replica in replicas])
    assert [message.tenants for message in messages.values()] == [changed, changed]
    assert [message.leases["acme"].cap_blocks for message in messages.values()] == [20, 20]
