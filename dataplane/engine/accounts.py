"""The tenants that an engine knows: what each may have, and when one is forgotten."""

from collections import OrderedDict
from collections.abc import Mapping

from dataplane.contracts.catalog import Share
from dataplane.contracts.leases import Lease
from dataplane.engine.config import EngineConfig
from dataplane.engine.fair_queue import FairQueue
from dataplane.engine.tenant_budget import DEFAULT_SHARE, TenantBudget, check_shares
from dataplane.engine.tenant_queue import TenantQueue


class Accounts:
    """Opens an account for whoever comes, by its share or as a stranger, and closes those of strangers that left.

    Args:
        config: sizes of the pool.
        queue: where the accounts are kept.
    """

    def __init__(self, config: EngineConfig, queue: FairQueue) -> None:
        self._config = config
        self._queue = queue
        self._shares: dict[str, Share] = {}
        self._leases: dict[str, Lease] = {}
        self._strangers: OrderedDict[str, TenantQueue] = OrderedDict()

    def replace(self, shares: Mapping[str, Share], leases: Mapping[str, Lease]) -> None:
        """Take other shares, for accounts that are opened from now on; see :meth:`renew`.

        Raises:
            ValueError: shares that the pool cannot keep; nothing is changed.
        """
        check_shares(shares, self._config.num_blocks, self._config.block_size, leases)
        self._shares, self._leases = dict(shares), dict(leases)
        for tenant_id in shares:
            self.of(tenant_id)
        self._strangers = OrderedDict((id_, t) for id_, t in self._queue.tenants.items() if id_ not in shares)

    def share_of(self, tenant: TenantQueue) -> Share:
        """Return the share of a tenant, or a stranger's."""
        return self._shares.get(tenant.id, DEFAULT_SHARE)

    def renew(self, tenant: TenantQueue) -> bool:
        """Give an account its share as it is now; True if it may hold less than before."""
        config, limit_blocks = self._config, tenant.budget.limit_blocks
        lease = self._leases.get(tenant.id)
        tenant.budget.set_share(self.share_of(tenant), config.num_blocks, config.block_size, lease, len(tenant.running))
        return tenant.budget.limit_blocks < limit_blocks

    def of(self, tenant_id: str) -> TenantQueue:
        """Return the account of a tenant, opened where there is none."""
        tenant = self._queue.tenants.get(tenant_id)
        if tenant is None:
            config = self._config
            share, lease = self._shares.get(tenant_id, DEFAULT_SHARE), self._leases.get(tenant_id)
            tenant = self._queue.add_tenant(TenantBudget(tenant_id, share, config.num_blocks, config.block_size, lease))
            if tenant_id not in self._shares:
                self._strangers[tenant_id] = tenant
        return tenant

    def forget_one(self) -> None:
        """Look at one stranger and close its account if that changes nothing, so that they do not pile up."""
        if self._strangers:
            tenant_id, tenant = self._strangers.popitem(last=False)
            if self._queue.is_forgettable(tenant):
                del self._queue.tenants[tenant_id]
            else:
                self._strangers[tenant_id] = tenant
