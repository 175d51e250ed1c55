"""The wait for a replica: from a request to its seat at one, at once or through the fair queue of a cold version."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from dataplane.contracts import headers
from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.replica import ReplicaReport
from dataplane.gateway import eta
from dataplane.gateway.cold_queue import Bounds, ColdQueue, Full, Held, Waiter
from dataplane.gateway.demand import DemandPost
from dataplane.gateway.exchange import Exchange
from dataplane.gateway.intake import REQUEST_BYTES
from dataplane.gateway.replicas import Replicas
from dataplane.gateway.router import Incarnation, Wanted
from dataplane.gateway.snapshot import Snapshot

Beat = Callable[[], Awaitable[None]]


class Guest(Waiter, eq=False, kw_only=True):
    """A request on its way to a seat: it waits until it has a ``replica``, or is turned away with ``refusal``.

    It waits for what the ``exchange`` wants at the moment.
    """

    exchange: Exchange
    avoid: Collection[Incarnation]
    settled: asyncio.Event
    replica: ReplicaReport | None = None
    refusal: ApiError | None = None

    @property
    def wanted(self) -> Wanted:
        """What it needs of a replica."""
        return self.exchange.wanted


class WaitingRoom:
    """Seats requests at replicas.

    A version has a queue only while somebody waits for it: because it is cold, or because all of its replicas have just
    become READY and have what they can take for a start. Then whoever comes waits too, and all leave at the pace of the
    replicas' slow start.

    Where the weights gave a request to an arm without a READY replica, or one that has left or lost its weight since,
    it waits for the stable arm, which is what the exchange says from then on.

    Args:
        replicas: where the seats are.
        demand: is told how many wait.
        bounds: of a deployment's waiters in all gateways together; each gateway keeps its part.
        max_tenant_waiting: waiters of one tenant in this gateway, over all deployments.
        gateways: returns how many there are.
        heartbeat_s: between two signs of life to callers that want them.
    """

    def __init__(
        self,
        replicas: Replicas,
        demand: DemandPost,
        *,
        bounds: Bounds,
        max_tenant_waiting: int,
        gateways: Callable[[], int],
        heartbeat_s: float,
    ) -> None:
        self._replicas = replicas
        self._demand = demand
        self._bounds = bounds
        self._max_tenant_waiting = max_tenant_waiting
        self._gateways = gateways
        self._heartbeat_s = heartbeat_s
        self._queues: dict[tuple[str, str], ColdQueue[Guest]] = {}
        self._by_tenant: Counter[str] = Counter()
        replicas.on_change = self._seat_all

    @property
    def waiting_count(self) -> int:
        """How many requests wait for a replica."""
        return sum(len(queue) for queue in self._queues.values())

    @asynccontextmanager
    async def seat(
        self, exchange: Exchange, avoid: Collection[Incarnation], beat: Beat | None
    ) -> AsyncIterator[ReplicaReport]:
        """Hold a seat at a replica, never one of ``avoid``, while the block runs.

        ``beat`` is called now and then during the wait.

        Raises:
            ApiError: MODEL_COLD when no replica became READY in time; OVERLOADED when too many wait, or for too long
                since it did; QUEUE_FULL when it is the caller's tenant of whom too many wait; MODEL_PAUSED, MODEL_COLD
                or MODEL_NOT_FOUND when what was waited for is no longer served.
        """
        if exchange.fallback is not None and not self._replicas.serve(exchange.wanted, avoid):
            exchange.fall_back()
        guest = Guest(
            tenant_id=exchange.caller.tenant.id,
            weight=exchange.deployment.grants[exchange.caller.tenant.id].weight,
            size_bytes=REQUEST_BYTES + len(exchange.intake.body),
            expires_s=asyncio.get_running_loop().time() + exchange.patience.wait_s,
            exchange=exchange,
            avoid=avoid,
            settled=asyncio.Event(),
        )
        try:
            replica = self._at_once(guest)
            if replica is None:
                self._enter(guest)
                replica = await self._wait(guest, exchange.patience.wait_s, beat)
            yield replica
        finally:
            self._leave(guest)

    def _at_once(self, guest: Guest) -> ReplicaReport | None:
        if guest.wanted.key in self._queues:
            return None
        found = self._replicas.find(guest.wanted, guest.avoid, paced=False)
        return None if isinstance(found, Held) else self._give(guest, found)

    def _give(self, guest: Guest, replica: ReplicaReport) -> ReplicaReport:
        # Counted here and not when the guest's task runs: between the two, others are seated by the same figures.
        self._replicas.sent(replica)
        guest.replica = replica
        guest.settled.set()
        return replica

    def review(self, snapshot: Snapshot) -> None:
        """Turn away who waits for what the catalog no longer serves; from an arm without weight, to the stable one."""
        for key, queue in list(self._queues.items()):
            if not snapshot.weight(*key):
                self._fall_back(queue)
            refusal = snapshot.withdrawn(*key)
            if refusal is not None:
                for guest in queue.everybody():
                    queue.discard(guest)
                    self._refuse(guest, refusal)
            self._seat(key)

    def _refuse(self, guest: Guest, refusal: ApiError) -> None:
        self._left(guest)
        guest.refusal = refusal
        guest.settled.set()

    def _fall_back(self, queue: ColdQueue[Guest]) -> None:
        """Have those of a queue who may do so wait in that of the stable arm."""
        for guest in queue.everybody():
            if guest.exchange.fallback is not None:
                queue.discard(guest)
                self._left(guest)
                guest.exchange.fall_back()
                try:
                    self._enter(guest)
                except ApiError as full:
                    guest.refusal = full
                    guest.settled.set()

    def _enter(self, guest: Guest) -> None:
        mine = self._by_tenant[guest.tenant_id]
        if mine >= self._max_tenant_waiting:
            raise self._too_many(guest, f"{mine} of this tenant's requests already wait for models to start")
        queue = self._queues.get(guest.wanted.key) or ColdQueue()
        try:
            evicted = queue.push(guest, self._bounds.shared_by(self._gateways() * len(guest.exchange.deployment.arms)))
        except Full as full:
            if full.over_share:
                raise self._too_many(guest, _share(full.waiting)) from None
            raise ApiError(
                Code.OVERLOADED,
                f"{full.waiting} requests already wait for this model to start. Try again later.",
                retry_after_s=self._come_again_s(guest),
            ) from None
        self._queues[guest.wanted.key] = queue
        self._by_tenant[guest.tenant_id] += 1
        for other in evicted:
            self._refuse(other, self._too_many(other, _share(queue.waiting(other.tenant_id))))
        self._seat(guest.wanted.key)

    async def _wait(self, guest: Guest, wait_s: float, beat: Beat | None) -> ReplicaReport:
        try:
            async with asyncio.timeout_at(guest.expires_s):
                await self._settled(guest, beat)
        except TimeoutError:
            if guest.replica is None and guest.refusal is None:
                raise self._expired(guest, wait_s) from None
        if guest.replica is None:
            raise guest.refusal or self._expired(guest, wait_s)
        return guest.replica

    async def _settled(self, guest: Guest, beat: Beat | None) -> None:
        while not guest.settled.is_set():
            try:
                async with asyncio.timeout(None if beat is None else self._heartbeat_s):
                    await guest.settled.wait()
            except TimeoutError:
                if beat is not None:
                    await beat()

    def _leave(self, guest: Guest) -> None:
        """Take a guest from wherever it is; its seat, or its place in the queue, is for others now."""
        queue = self._queues.get(guest.wanted.key)
        if guest.replica is not None:
            self._replicas.ended(guest.replica)
        elif queue is not None and queue.discard(guest):
            self._left(guest)
        self._seat(guest.wanted.key)

    def _seat_all(self) -> None:
        for key in list(self._queues):
            self._seat(key)

    def _seat(self, key: tuple[str, str]) -> None:
        """Seat who can be seated of a queue."""
        queue = self._queues.get(key)
        if queue is None:
            return
        now_s = asyncio.get_running_loop().time()
        if self._replicas.cold(key):
            self._fall_back(queue)
        while not self._replicas.cold(key) and (taken := queue.take(self._offer, now_s)) is not None:
            guest, replica = taken
            self._left(guest)
            self._give(guest, replica)
        if not len(queue):
            del self._queues[key]
        self._demand.set(key[0], sum(len(queue) for (of, _), queue in self._queues.items() if of == key[0]))

    def _offer(self, guest: Guest) -> ReplicaReport | Held:
        return self._replicas.find(guest.wanted, guest.avoid, paced=True)

    def _left(self, guest: Guest) -> None:
        self._by_tenant[guest.tenant_id] -= 1
        if not self._by_tenant[guest.tenant_id]:
            del self._by_tenant[guest.tenant_id]

    def _come_again_s(self, guest: Guest) -> float:
        return eta.come_again_s(self._replicas.expected_s(guest.wanted), random.random)

    def _too_many(self, guest: Guest, why: str) -> ApiError:
        return ApiError(Code.QUEUE_FULL, f"{why}. Try again later.", retry_after_s=self._come_again_s(guest))

    def _expired(self, guest: Guest, wait_s: float) -> ApiError:
        if self._replicas.serve(guest.wanted, guest.avoid):
            return ApiError(
                Code.OVERLOADED,
                f"This model has just started, and in {wait_s:g} s the turn of this request did not come. Try again.",
                retry_after_s=self._come_again_s(guest),
            )
        expected_s = self._replicas.expected_s(guest.wanted)
        when = "later" if expected_s is None else f"in about {max(1.0, expected_s):.0f} s, when it is expected"
        return ApiError(
            Code.MODEL_COLD,
            f"No replica of this model became ready in {wait_s:g} s. Try again {when}, or ask for a longer wait with "
            f"the header '{headers.COLD_WAIT_S}'.",
            retry_after_s=self._come_again_s(guest),
        )


def _share(waiting: int) -> str:
    return f"{waiting} of this tenant's requests wait for this model to start, which is its share of the queue"
