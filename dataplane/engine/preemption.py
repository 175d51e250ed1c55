"""Whom to preempt. Pure choices: nothing is changed here.

A tenant within its guarantee is never chosen for memory, whoever asks. The newest request goes first: the oldest has
the most to lose and must be able to finish.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from dataplane.engine.sequence import Sequence
from dataplane.engine.tenant_queue import TenantQueue


def growth_victim(grower: Sequence, tenants: Iterable[TenantQueue]) -> Sequence:
    """Return the sequence that makes room for one more block of ``grower``: possibly itself, always some one.

    When no block is free or cached, the owned blocks fill the pool; the guarantees do not exceed it, so counting the
    block to come somebody is above its guarantee. The grower's tenant loses ties: for equals it does not take.
    """
    own = grower.tenant
    if own.budget.owned_blocks >= own.budget.cap_blocks:
        return own.newest_running()
    candidates = [tenant for tenant in tenants if tenant.running]
    most = max(candidates, key=lambda tenant: (tenant.budget.excess_blocks + (tenant is own), tenant is own))
    return most.newest_running()


def reclaim_victims(
    shortfall_blocks: int, tenants: Iterable[TenantQueue], step: int, min_run_steps: int
) -> list[Sequence] | None:
    """Return sequences of tenants above their guarantee that free ``shortfall_blocks``, or None if they cannot.

    All or none: to preempt without being able to admit would be waste. The last victim that holds a block frees it.
    """
    excess = {tenant: tenant.budget.excess_blocks for tenant in tenants if tenant.budget.excess_blocks > 0}
    takeable = {tenant: _settled(tenant, step, min_run_steps) for tenant in excess}
    let_go: Counter[int] = Counter()
    victims: list[Sequence] = []
    while shortfall_blocks > 0:
        candidates = [tenant for tenant in excess if excess[tenant] > 0 and takeable[tenant]]
        if not candidates:
            return None
        tenant = max(candidates, key=lambda tenant: excess[tenant])
        victim = takeable[tenant].pop()
        freed = freed_blocks(victim, let_go)
        excess[tenant] -= freed
        shortfall_blocks -= freed
        victims.append(victim)
    return victims


def freed_blocks(victim: Sequence, let_go: Counter[int]) -> int:
    """Return how many blocks become free with ``victim``, after others that let go of blocks so often (by id)."""
    let_go.update(victim.table.block_ids)
    return sum(block.ref_count == let_go[block.id] for block in victim.table.blocks)


def row_giver(newcomer: TenantQueue, tenants: Collection[TenantQueue], gap_units: float) -> Sequence | None:
    """Return the newest sequence that computes of whoever can spare a row for ``newcomer``, None if nobody can.

    That is whoever had most service, if that is more than the newcomer's by over ``gap_units`` and the row is not its
    last; or else, of those who did not have less by as much, the tenant with most rows per weight, if these are more
    than the newcomer's will be with one more. Nobody computes anything again for it: the sequence keeps its blocks, and
    goes on when a row is free.
    """
    spare = (tenant for tenant in tenants if tenant.num_rows > 1)
    giver = max(spare, key=lambda tenant: tenant.counter, default=newcomer)
    if giver.counter <= newcomer.counter + gap_units:
        equals = (tenant for tenant in tenants if tenant.counter >= newcomer.counter - gap_units)
        giver = max(equals, key=TenantQueue.rows_per_weight, default=newcomer)
        if giver.rows_per_weight() <= newcomer.rows_per_weight(1):
            return None
    return max(
        (sequence for id_, sequence in giver.running.items() if id_ not in giver.paused),
        key=lambda sequence: sequence.arrival,
    )


def _settled(tenant: TenantQueue, step: int, min_run_steps: int) -> list[Sequence]:
    """Return the sequences that may be preempted for an admission, newest last.

    Each has run for a while since its admission, and since it had caught up after an earlier preemption: so every
    preemption is paid for by progress, and two requests cannot throw each other out forever.
    """
    settled = [
        sequence
        for sequence in tenant.running.values()
        if not sequence.is_recomputing and step - sequence.running_since_step >= min_run_steps
    ]
    return sorted(settled, key=lambda sequence: sequence.arrival)


@dataclass(slots=True)
class _Account:
    credit_tokens: float
    seen_work_tokens: int


class ReclaimCredit:
    """Keeps the recompute that reclaims cause below a fixed share of the work, whoever reclaims and aborts.

    For every token computed for the first time, by anybody, a tenant may make others recompute ``share`` tokens times
    its part of all guarantees. So all reclaims together stay below ``share`` of the first-time work, plus one burst (a
    tenant's guarantee) and what its last reclaim cost; and nobody can use up the credit of another. A tenant without
    credit waits like a borrower, with memory held back for it.

    Args:
        share: recomputed tokens per first-time token.
    """

    def __init__(self, share: float) -> None:
        self.work_tokens = 0
        self.all_guarantees_tokens = 0
        self._share = share
        self._accounts: dict[str, _Account] = {}

    def has(self, tenant_id: str, guarantee_tokens: int) -> bool:
        """Say whether the tenant may reclaim now. A reclaim may cost more than is left: the debt is worked off."""
        return self._earn(tenant_id, guarantee_tokens).credit_tokens > 0

    def spend(self, tenant_id: str, recomputed_tokens: int) -> None:
        """Take off what a victim of the tenant had to compute again; what it found in the cache costs nothing."""
        if tenant_id in self._accounts:
            self._accounts[tenant_id].credit_tokens -= recomputed_tokens

    def set_guarantees(self, guarantees_tokens: dict[str, int]) -> None:
        """Take new guarantees; credit that was earned is kept."""
        self.all_guarantees_tokens = sum(guarantees_tokens.values())
        self._accounts = {id_: account for id_, account in self._accounts.items() if guarantees_tokens.get(id_)}

    def _earn(self, tenant_id: str, guarantee_tokens: int) -> _Account:
        account = self._accounts.setdefault(tenant_id, _Account(guarantee_tokens, self.work_tokens))
        rate = self._share * guarantee_tokens / max(1, self.all_guarantees_tokens)
        earned = (self.work_tokens - account.seen_work_tokens) * rate
        account.credit_tokens = min(guarantee_tokens, account.credit_tokens + earned)
        account.seen_work_tokens = self.work_tokens
        return account
