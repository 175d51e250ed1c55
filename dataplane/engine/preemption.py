"""Whom to preempt. Pure choices: nothing is changed here.

A tenant within its guarantee is never chosen for memory, whoever asks. The newest request goes first: the oldest has
the most to lose and must be able to finish.
"""

from collections.abc import Iterable

from dataplane.engine.fair_queue import TenantQueue
from dataplane.engine.sequence import Sequence


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

    All or none: to preempt without being able to admit would be waste. Blocks that a victim shares are not counted.
    """
    excess = {tenant: tenant.budget.excess_blocks for tenant in tenants if tenant.budget.excess_blocks > 0}
    takeable = {tenant: _settled(tenant, step, min_run_steps) for tenant in excess}
    victims: list[Sequence] = []
    while shortfall_blocks > 0:
        candidates = [tenant for tenant in excess if excess[tenant] > 0 and takeable[tenant]]
        if not candidates:
            return None
        tenant = max(candidates, key=lambda tenant: excess[tenant])
        victim = takeable[tenant].pop()
        freed = sum(block.ref_count == 1 for block in victim.table.blocks)
        excess[tenant] -= freed
        shortfall_blocks -= freed
        victims.append(victim)
    return victims


def slot_victim(
    newcomer: TenantQueue, tenants: Iterable[TenantQueue], step: int, min_run_steps: int
) -> Sequence | None:
    """Return the newest settled sequence of the tenant with most slots per weight, if it has more than a newcomer.

    For a tenant with a guarantee that runs nothing while all slots are full: its memory is of no use without a slot.
    """
    one_slot = 1 / newcomer.budget.weight
    best: Sequence | None = None
    most = one_slot
    for tenant in tenants:
        slots = len(tenant.running) / tenant.budget.weight
        if slots > most and (settled := _settled(tenant, step, min_run_steps)):
            best, most = settled[-1], slots
    return best


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
