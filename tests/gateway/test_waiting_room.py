"""Whatever tables, catalogs and callers come: a seat is at a READY replica of the arm that its request says."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
from gateway_world import PEPPERS, World, report
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.contracts.catalog import CANDIDATE, STABLE, Arm, Hold
from dataplane.contracts.errors import ApiError
from dataplane.contracts.replica import ReplicaReport, ReplicaState, ReplicaTable
from dataplane.contracts.usage import Phases
from dataplane.gateway import auth, intake, router
from dataplane.gateway.arm_choice import Choice
from dataplane.gateway.cold_queue import Bounds
from dataplane.gateway.demand import DemandPost
from dataplane.gateway.exchange import Exchange
from dataplane.gateway.patience import Patience
from dataplane.gateway.replicas import Replicas
from dataplane.gateway.router import Incarnation
from dataplane.gateway.snapshot import Snapshot
from dataplane.gateway.waiting_room import WaitingRoom

VERSIONS = {STABLE: "ver_1", CANDIDATE: "ver_2"}
WHO = [STABLE, CANDIDATE, CANDIDATE, "chose stable", "chose candidate"]
BODY = b'{"model":"chat","prompt":"hello"}'
states = st.sampled_from([ReplicaState.READY, ReplicaState.READY, ReplicaState.READY, ReplicaState.ASLEEP, None])
shown = st.tuples(states, states, st.sampled_from([None, *ReplicaState])).map(
    lambda found: [
        report(f"rep_{number}", version_id=version_id, state=state)
        for number, (version_id, state) in enumerate(zip(("ver_1", "ver_2", "ver_2"), found, strict=True))
        if state is not None
    ]
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("table"), shown),
        st.tuples(st.just("weight"), st.sampled_from([0, 0, 50, None])),
        st.tuples(st.just("arrive"), st.tuples(st.sampled_from(WHO), st.sampled_from([1, 9, 9]))),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("lose"), st.integers(0, 9)),
    ),
    min_size=5,
    max_size=30,
)


class Room:
    """A waiting room with its replicas, and requests that come, hold their seats, lose them and go."""

    def __init__(self) -> None:
        self.world = World()
        self.caller = auth.authenticate(self.world.acme_key.text, self.world.catalog(), PEPPERS, 0)
        self.replicas = Replicas("http://nowhere", "secret")
        self.room = WaitingRoom(
            self.replicas,
            DemandPost("http://nowhere", "secret", "gateway"),
            bounds=Bounds(1000, 1 << 30),
            max_tenant_waiting=1000,
            gateways=lambda: 1,
            heartbeat_s=60,
        )
        self.table: Sequence[ReplicaReport] = ()
        self.candidate: Arm | None = Arm("ver_2", 50, CANDIDATE, Hold.READY)
        self.orders: list[asyncio.Queue[str]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.waiting: list[Exchange] = []
        self.unserved: list[Exchange] = []

    def take(self, table: Sequence[ReplicaReport]) -> None:
        self.table = table
        self.replicas.take(ReplicaTable(node="node", number=1, at_ms=0, replicas=tuple(table)))

    def set_weight(self, weight: int | None) -> None:
        self.candidate = None if weight is None else Arm("ver_2", weight, CANDIDATE, Hold.READY)
        arms = (Arm("ver_1", 100 - (weight or 0)), *([] if self.candidate is None else [self.candidate]))
        chat = msgspec.structs.replace(self.world.deployments["chat"], arms=arms)
        self.world.deployments["chat"] = chat
        self.room.review(Snapshot(self.world.catalog()))

    def ready(self, version_id: str) -> list[ReplicaReport]:
        return [row for row in self.table if row.state is ReplicaState.READY and row.version_id == version_id]

    def arrive(self, who: str) -> None:
        forced, name = who.startswith("chose"), who.removeprefix("chose ")
        if not forced and (self.candidate is None or self.candidate.weight == 0):
            name = STABLE
        fallback = None if forced or name == STABLE else Arm("ver_1", 50)
        exchange = Exchange(
            request_id="req_1",
            endpoint="/v1/completions",
            caller=self.caller,
            choice=Choice(self.world.deployments["chat"], Arm(VERSIONS[name], 50, name), forced, fallback),
            intake=intake.parse(BODY),
            patience=Patience(3600.0),
            reserved_tokens=10,
            phases=Phases(),
            spool=None,
            release=lambda _: asyncio.sleep(0),
        )
        self.orders.append(asyncio.Queue())
        self.tasks.append(asyncio.create_task(self.live(exchange, name, self.orders[-1])))

    async def live(self, exchange: Exchange, name: str, orders: "asyncio.Queue[str]") -> None:
        avoid: set[Incarnation] = set()
        with contextlib.suppress(ApiError):
            for _ in range(2):
                self.waiting.append(exchange)
                if not self.replicas.serve(exchange.wanted, avoid):
                    self.unserved.append(exchange)
                async with self.room.seat(exchange, avoid, None) as seat:
                    self.waiting.remove(exchange)
                    self.check(exchange, name, seat, avoid)
                    if await orders.get() == "end":
                        return
                    self.replicas.suspect(seat)
                    avoid.add(router.incarnation(seat))
        if exchange in self.waiting:
            self.waiting.remove(exchange)

    def check(self, exchange: Exchange, name: str, seat: ReplicaReport, avoid: set[Incarnation]) -> None:
        assert seat in self.ready(exchange.arm.version_id)
        assert router.incarnation(seat) not in avoid
        assert exchange.arm.name in ({name} if exchange.forced else {name, STABLE})
        assert exchange.wanted.version_id == exchange.arm.version_id

    def check_nobody_waits_in_vain(self) -> None:
        """Who waits for a candidate that is not there chose it."""
        for exchange in self.waiting:
            gone = not self.ready("ver_2") or self.candidate is None or self.candidate.weight == 0
            if exchange.arm.name == CANDIDATE and (gone or exchange in self.unserved):
                assert exchange.forced
        self.unserved.clear()

    def order(self, number: int, what: str) -> None:
        if self.orders:
            self.orders[number % len(self.orders)].put_nowait(what)

    def play(self, what: str, detail: Any) -> None:
        match what:
            case "table":
                self.take(detail)
            case "weight":
                self.set_weight(detail)
            case "arrive":
                for _ in range(detail[1]):
                    self.arrive(detail[0])
            case _:
                self.order(detail, what)


@settings(max_examples=150)
@given(events)
def test_every_seat_is_at_a_ready_replica_of_the_arm_that_its_request_says(events: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        room = Room()
        room.take([report("rep_0"), report("rep_1", version_id="ver_2")])
        for event in events:
            room.play(*event)
            for _ in range(5):
                await asyncio.sleep(0)
            room.check_nobody_waits_in_vain()
            for task in room.tasks:
                if task.done():
                    task.result()
        for task in room.tasks:
            task.cancel()
        await asyncio.gather(*room.tasks, return_exceptions=True)
        assert room.room.waiting_count == 0
        assert not room.replicas._outstanding

    asyncio.run(play())
