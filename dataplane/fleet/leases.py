"""Parts of the tenants' shares on the replicas that divide them: leases that follow demand. Pure.

A round takes what each replica said last and answers whom to tell what. Its rules, each held by a property test:

1. What may be in force at a replica is the most of what it says is in force and of what it was told since. The sum over
   the replicas never grows beyond the share: a part is lowered first, and raised elsewhere by what nobody may hold any
   more. Who does not answer holds its part until its process is known to be gone.
2. A part that moves leaves its replica what is in use there. Only where the share itself was lowered below what its
   tenant uses is a running request preempted, and then only once every replica was told to take no more.
3. Parts follow demand: first what is in use, then the requests that go next, then a floor, growth, and all that wait;
   the rest is spread evenly. What cannot be met is divided in proportion to what lacks, but for the requests that go
   next: half a request's room is of no use, so replicas get theirs one after the other, who waited longest first.
4. Guarantees that meet on one replica fit its pool, and leave room for its largest request where they can.
5. Parts that serve well stay: they move for a request that cannot begin, or for more than a small part of the share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import msgspec

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import TenantLoad
from dataplane.contracts.leases import Lease, blocks_for
from dataplane.contracts.replica import SetShares
from dataplane.fleet.parts import Row, fill, move

_GROWTH_TOKENS = 64
"""What a running sequence may add until its part can follow: a round takes half a second, and some do 100 tokens/s."""
_FLOOR_PART = 4
"""A replica without requests keeps this part of an even share, so that the next one finds room at once."""
_FIRST_IN_LINE = 2
"""Which want of a cap is to be met to the block: with less the next request could not begin."""
_NO_LOAD = TenantLoad("", 0, 0, 1, 0, 0, 0, 0, 0.0)

Part = tuple[int, int]
"""What a replica is to hold, and what it keeps of what it held while that is in use."""


class Seen(msgspec.Struct, frozen=True):
    """A replica as it said it is.

    Attributes:
        serves: it gets new requests, now or soon.
        takes: it can be told something now.
        lost: what it was told last may not have arrived.
        number: of the shares in force.
        pool_blocks: blocks of its pool; 0 while that is not known.
        context_blocks: those of its largest request.
        tenants: what it says of each tenant, by id.
    """

    replica_id: str
    serves: bool
    takes: bool
    lost: bool = False
    number: int = 0
    pool_blocks: int = 0
    context_blocks: int = 0
    tenants: Mapping[str, TenantLoad] = {}


@dataclass(slots=True)
class _Account:
    """What a replica was told, from what is in force to the newest, and what it said last."""

    told: list[SetShares]
    seen: Seen

    def hear(self, seen: Seen) -> None:
        """Take what it says. What it confirms ends all that it was told before."""
        self.told = [message for message in self.told if message.number >= seen.number]
        self.seen = seen

    @property
    def settled(self) -> bool:
        """Whether all that it was told is in force."""
        return self.told[-1].number == self.seen.number

    @property
    def keeps_more_than_told(self) -> bool:
        """Whether it holds what was in use when it was told to give it up. It looks again when it is told again."""
        return self.settled and any(
            said.guarantee_blocks > lease.guarantee_blocks
            or (lease.cap_blocks is not None and said.cap_blocks > lease.cap_blocks)
            for tenant_id, lease in self.newest.items()
            if (said := self.seen.tenants.get(tenant_id)) is not None
        )

    @property
    def newest(self) -> Mapping[str, Lease]:
        """What it is to hold."""
        return self.told[-1].leases

    def rests(self, tenant_id: str) -> bool:
        """Say whether nothing of the tenant is in use or asked for there, and all it was told is one and the same."""
        lease, said = self.newest.get(tenant_id), self.seen.tenants.get(tenant_id)
        if lease is None or said is None or said.owned_blocks or said.num_running or said.head_tokens:
            return False
        if said.guarantee_blocks != lease.guarantee_blocks or lease.cap_blocks not in (None, said.cap_blocks):
            return False
        unconfirmed = [message for message in self.told if message.number > self.seen.number]
        return self.seen.serves and all(
            message.leases.get(tenant_id) == self.at_rest(tenant_id) for message in unconfirmed
        )

    def at_rest(self, tenant_id: str) -> Lease:
        """Return what it is to hold of one that rests."""
        return Lease(self.newest[tenant_id].guarantee_blocks, self.newest[tenant_id].cap_blocks)

    def told_guarantee(self, tenant_id: str) -> int:
        lease = self.newest.get(tenant_id)
        return 0 if lease is None else lease.guarantee_blocks

    def told_cap(self, tenant_id: str, uncapped_blocks: int) -> int:
        lease = self.newest.get(tenant_id)
        if lease is None:
            return 0
        return uncapped_blocks if lease.cap_blocks is None else lease.cap_blocks

    def guarantees(self, tenant_id: str) -> list[int]:
        """Return what may be guaranteed to the tenant there now."""
        return [lease.guarantee_blocks for lease in self._may_be_in_force(tenant_id)] or [0]

    def caps(self, tenant_id: str, uncapped_blocks: int) -> list[int]:
        """Return what may be the tenant's cap there now, ``uncapped_blocks`` where it has none."""
        caps = [lease.cap_blocks for lease in self._may_be_in_force(tenant_id)]
        return [uncapped_blocks if cap is None else cap for cap in caps] or [0]

    def _may_be_in_force(self, tenant_id: str) -> list[Lease]:
        leases = [message.leases[tenant_id] for message in self.told if tenant_id in message.leases]
        said, in_force = self.seen.tenants.get(tenant_id), self.told[0]
        if said is not None and tenant_id in in_force.leases and in_force.number == self.seen.number:
            capped = leases[0].cap_blocks is not None
            leases[0] = Lease(said.guarantee_blocks, said.cap_blocks if capped else None)
        return leases


class Turns:
    """Which replicas lack room for a tenant's next request, and since when."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[int, int]] = {}  # since which round, for how many blocks
        self._rounds = 0

    def round(self, ids: Sequence[str], wants: Sequence[int], caps: Sequence[int]) -> list[int]:
        """Return the places of ``ids`` in the order of their turns, where each ``wants`` blocks and has ``caps``."""
        self._rounds += 1
        waits: dict[str, tuple[int, int]] = {}
        for id_, want, cap in zip(ids, wants, caps, strict=True):
            since, blocks = self._waits.get(id_, (self._rounds, want))
            if cap < want:
                # Had it once what it waited for, that request had its turn; the next one stands behind the others'.
                waits[id_] = (self._rounds, want) if cap >= blocks else (since, blocks)
        self._waits = waits
        return sorted(range(len(ids)), key=lambda place: waits.get(ids[place], (self._rounds + 1, 0))[0])


class _Wants(NamedTuple):
    """Blocks for what runs; with its next blocks; with the request that goes next; grown, until more comes; for all."""

    owned: int
    growing: int
    first: int
    grown: int
    everything: int


class Leases:
    """The leases of all tenants of one deployment, on the replicas of one version with the same settings.

    Args:
        block_size: tokens in a block of their pools.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._accounts: dict[str, _Account] = {}
        self._turns: dict[str, Turns] = {}
        self._number = 0

    def begin(self, replica_id: str, grants: Mapping[str, Share], wanted: int) -> dict[str, Lease]:
        """Return what a replica that is to load begins with: an even part, as far as it is free.

        ``wanted``: how many replicas there are to be.
        """
        leases: dict[str, Lease] = {}
        for tenant_id, share in grants.items():
            guarantee_blocks, cap_blocks = self._whole(share)
            guaranteed = sum(max(account.guarantees(tenant_id)) for account in self._accounts.values())
            part_blocks = _even_part(guarantee_blocks, guaranteed, wanted)
            if cap_blocks is None:
                leases[tenant_id] = Lease(part_blocks, None)
            else:
                held = sum(max(account.caps(tenant_id, cap_blocks)) for account in self._accounts.values())
                leases[tenant_id] = Lease(part_blocks, _even_part(cap_blocks, held, wanted))
        seen = Seen(replica_id, serves=True, takes=False)
        self._accounts[replica_id] = _Account([SetShares(dict(grants), leases)], seen)
        return leases

    def round(self, grants: Mapping[str, Share], replicas: Sequence[Seen]) -> dict[str, SetShares]:
        """Hear ``replicas``, all that are not known to be gone, and return what to tell which of them."""
        known = [seen for seen in replicas if seen.replica_id in self._accounts]
        self._accounts = {seen.replica_id: self._accounts[seen.replica_id] for seen in known}
        for seen in known:
            self._accounts[seen.replica_id].hear(seen)
        movable = [account for account in self._accounts.values() if account.seen.pool_blocks]
        if not movable:
            return {}
        moving = {id_: share for id_, share in grants.items() if not self._rests(id_, share, movable)}
        self._turns = {id_: turns for id_, turns in self._turns.items() if id_ in moving}
        guarantees = self._guarantees(grants, moving, movable)
        caps = {tenant_id: self._caps(tenant_id, share, movable) for tenant_id, share in moving.items()}
        messages: dict[str, SetShares] = {}
        for place, account in enumerate(movable):
            moved = {tenant_id: _lease(guarantees[tenant_id][place], caps[tenant_id], place) for tenant_id in moving}
            if account.seen.takes and _is_news(account, grants, moved):
                self._number += 1
                leases = {tenant_id: moved.get(tenant_id) or account.at_rest(tenant_id) for tenant_id in grants}
                message = SetShares(dict(grants), leases, self._number)
                account.told.append(message)
                messages[account.seen.replica_id] = message
        return messages

    def _rests(self, tenant_id: str, share: Share, movable: Sequence[_Account]) -> bool:
        """Say whether the parts of a tenant without requests lie as they were told, so that nothing is to be decided.

        Most tenants rest at any moment, and a round looks at each of them four times a second.
        """
        whole_guarantee, whole_cap = self._whole(share)
        guarantee = sum(max(account.guarantees(tenant_id)) for account in self._fixed())
        cap = sum(max(account.caps(tenant_id, whole_cap or 0)) for account in self._fixed())
        for account in movable:
            if not account.rests(tenant_id):
                return False
            lease = account.newest[tenant_id]
            if (lease.cap_blocks is None) != (whole_cap is None):
                return False
            floors = _floor(account, whole_guarantee, len(movable)), _floor(account, whole_cap or 0, len(movable))
            if lease.guarantee_blocks < floors[0] or (lease.cap_blocks or 0) < floors[1]:
                return False
            guarantee += lease.guarantee_blocks
            cap += lease.cap_blocks or 0
        room = sum(account.seen.pool_blocks for account in movable)
        return guarantee == whole_guarantee and (whole_cap is None or cap == min(whole_cap, room))

    def _whole(self, share: Share) -> tuple[int, int | None]:
        """Return guarantee and cap of a share in blocks."""
        cap_blocks = None if share.cap_tokens is None else blocks_for(share.cap_tokens, self._block_size)
        return blocks_for(share.guarantee_tokens, self._block_size), cap_blocks

    def _guarantees(
        self, grants: Mapping[str, Share], moving: Mapping[str, Share], movable: list[_Account]
    ) -> dict[str, list[Part]]:
        serving = max(1, sum(account.seen.serves for account in self._accounts.values()))
        even = sum(-(-self._whole(share)[0] // serving) for share in grants.values())
        resting = grants.keys() - moving.keys()
        room = []
        for account in movable:
            pool, context = account.seen.pool_blocks, account.seen.context_blocks
            at_rest = sum(account.newest[tenant_id].guarantee_blocks for tenant_id in resting)
            room.append(min(pool, max(even, pool - context)) - at_rest)
        wholes = {tenant_id: self._whole(share)[0] for tenant_id, share in moving.items()}
        rows = [self._guarantee_row(tenant_id, whole, movable) for tenant_id, whole in wholes.items()]
        free = [most - sum(row.held[place] for row in rows) for place, most in enumerate(room)]
        targets = _targets(rows, room, movable)
        return {
            tenant_id: move(row, target, free) for tenant_id, row, target in zip(wholes, rows, targets, strict=True)
        }

    def _guarantee_row(self, tenant_id: str, whole: int, movable: list[_Account]) -> Row:
        may_be = [account.guarantees(tenant_id) for account in movable]
        held, sure = list(map(max, may_be)), list(map(min, may_be))
        told = [account.told_guarantee(tenant_id) for account in movable]
        levels = []
        for account, most in zip(movable, held, strict=True):
            want, floor = self._wanted(account, tenant_id), _floor(account, whole, len(movable))
            levels.append(accumulate((min(want.owned, most), floor, want.everything), max))
        elsewhere = sum(max(account.guarantees(tenant_id)) for account in self._fixed())
        may_cut = self._may_cut(movable, whole - elsewhere, told, sure)
        return Row(max(0, whole - elsewhere), told, held, sure, list(zip(*levels, strict=True)), 1, may_cut)

    def _caps(self, tenant_id: str, share: Share, movable: list[_Account]) -> list[Part] | None:
        whole = self._whole(share)[1]
        if whole is None:
            return None
        pools = [account.seen.pool_blocks for account in movable]
        row = self._cap_row(tenant_id, whole, movable)
        (target,) = _targets([row], pools, movable)
        return move(row, target, [pool - held for pool, held in zip(pools, row.held, strict=True)])

    def _cap_row(self, tenant_id: str, whole: int, movable: list[_Account]) -> Row:
        may_be = [account.caps(tenant_id, account.seen.pool_blocks) for account in movable]
        held, sure = list(map(max, may_be)), list(map(min, may_be))
        told = [account.told_cap(tenant_id, account.seen.pool_blocks) for account in movable]
        levels = []
        for account, most in zip(movable, held, strict=True):
            want, floor = self._wanted(account, tenant_id), _floor(account, whole, len(movable))
            in_use = min(want.owned, most), min(want.growing, most)
            levels.append(accumulate((*in_use, want.first, floor, want.grown, want.everything), max))
        wants = list(zip(*levels, strict=True))
        elsewhere = sum(max(account.caps(tenant_id, whole)) for account in self._fixed())
        # One that loads without a cap serves nobody before it is told of one: nothing in use has to make way for that.
        surely_elsewhere = sum(max(account.caps(tenant_id, 0)) for account in self._fixed())
        may_cut = self._may_cut(movable, whole - surely_elsewhere, told, sure)
        ids = [account.seen.replica_id for account in movable]
        caps = [account.seen.tenants.get(tenant_id, _NO_LOAD).cap_blocks for account in movable]
        turns = self._turns.setdefault(tenant_id, Turns()).round(ids, wants[_FIRST_IN_LINE], caps)
        return Row(max(0, whole - elsewhere), told, held, sure, wants, _FIRST_IN_LINE, may_cut, turns)

    def _wanted(self, account: _Account, tenant_id: str) -> _Wants:
        load = account.seen.tenants.get(tenant_id, _NO_LOAD)
        head = blocks_for(load.head_tokens, self._block_size)
        growing = load.owned_blocks + load.num_running
        grown = load.owned_blocks + load.num_running * blocks_for(_GROWTH_TOKENS, self._block_size) + head
        everything = grown + head * max(0, load.num_waiting - 1)
        return _Wants(load.owned_blocks, growing, growing + head, grown, everything)

    def _fixed(self) -> list[_Account]:
        """Return those that cannot be told anything yet: they hold what they were given."""
        return [account for account in self._accounts.values() if not account.seen.pool_blocks]

    def _may_cut(self, movable: list[_Account], whole: int, told: list[int], sure: list[int]) -> list[bool]:
        """Say who may be told to give up what is in use, by what each was ``told`` and is ``sure`` to hold.

        Nobody before all were told to hold no more than the ``whole`` and surely hold more all the same: what is known
        of others is a moment old, and what is in use here may be all that is left.
        """
        alone = len(self._accounts) == 1
        beyond = sum(told) <= whole < sum(sure)
        return [alone or (beyond and account.settled) for account in movable]


def _floor(account: _Account, whole: int, replicas: int) -> int:
    """Return what a replica keeps of ``whole`` blocks without requests."""
    return min(whole // replicas, max(1, whole // (_FLOOR_PART * replicas))) if account.seen.serves else 0


def _even_part(whole: int, held: int, wanted: int) -> int:
    return max(0, min(whole - held, -(-whole // max(1, wanted))))


def _targets(rows: Sequence[Row], room: Sequence[int], movable: Sequence[_Account]) -> list[list[int]]:
    """Return the parts to make for: those there are, while they serve well."""
    serves = [account.seen.serves for account in movable]
    serves = serves if any(serves) else [True] * len(serves)
    best = fill(rows, room, serves)
    fits = all(sum(row.told[place] for row in rows) <= most for place, most in enumerate(room))
    needed = fill(rows, room)
    if fits and all(row.serves_well(few, many, serves) for row, few, many in zip(rows, needed, best, strict=True)):
        return [list(row.told) for row in rows]
    return best


def _lease(guarantee: Part, caps: list[Part] | None, place: int) -> Lease:
    cap_blocks, kept_cap_blocks = (None, 0) if caps is None else caps[place]
    guarantee_blocks, kept_guarantee_blocks = guarantee
    return Lease(guarantee_blocks, cap_blocks, kept_guarantee_blocks, kept_cap_blocks)


def _is_news(account: _Account, grants: Mapping[str, Share], moved: Mapping[str, Lease]) -> bool:
    return (
        account.seen.lost
        or account.keeps_more_than_told
        or account.told[-1].tenants != grants
        or any(_parts(account.newest.get(tenant_id)) != _parts(lease) for tenant_id, lease in moved.items())
    )


def _parts(lease: Lease | None) -> tuple[int, int | None] | None:
    return None if lease is None else (lease.guarantee_blocks, lease.cap_blocks)
