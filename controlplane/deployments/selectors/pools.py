"""KV pools: what they hold, what of them is promised to whom, and what is in use. Tokens throughout."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.deployments.capacity import largest, pool_tokens
from controlplane.deployments.models import Deployment, DeploymentArm, DeploymentState, Grant, ReplicaRow
from controlplane.deployments.selectors.rows import own_deployment, replica_report
from dataplane.contracts.catalog import Share
from dataplane.contracts.replica import ReplicaReport, ReplicaState
from tenants.actor import Actor, reading_as, require
from tenants.errors import NotFound
from tenants.roles import Permission


@dataclass(frozen=True, slots=True)
class TenantPool:
    """A tenant in a deployment's pool, over all replicas that serve.

    Args:
        tenant: its slug.
        share: what it is promised on the deployment as a whole.
        used_tokens: held by its requests.
        borrowed_tokens: the part of that above its guarantee.
        cached_tokens: kept for its next requests, free for others to take.
        num_running: requests that compute.
        num_waiting: requests in line, and paused ones.
        num_paused: those that keep their memory while another tenant has their place in the step.
    """

    tenant: str
    share: Share
    used_tokens: int
    borrowed_tokens: int
    cached_tokens: int
    num_running: int
    num_waiting: int
    num_paused: int


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV pool of a deployment.

    Args:
        deployment: whose.
        pool_tokens: one replica's pool, as planned.
        grants: who may call it, with which share, by slug.
        ready_replicas: replicas that serve now.
        total_tokens: the pools of those together; nothing while none serves.
        used_tokens: held by requests.
        cached_tokens: kept for next requests.
        free_tokens: neither.
        tenants: the same by tenant, by slug.
    """

    deployment: Deployment
    pool_tokens: int
    grants: tuple[Grant, ...]
    ready_replicas: int
    total_tokens: int
    used_tokens: int
    cached_tokens: int
    free_tokens: int
    tenants: tuple[TenantPool, ...]

    @property
    def guaranteed_tokens(self) -> int:
        """What is promised, in all."""
        return sum(grant.guarantee_tokens for grant in self.grants)

    @property
    def promised_from_tokens(self) -> int:
        """What promises are checked against: the pools of the fewest replicas there may be."""
        return self.pool_tokens * max(1, self.deployment.min_replicas)


def get_pool(*, actor: Actor, deployment_id: str) -> Pool:
    """Return the KV pool of a deployment; to the owner, or to the platform.

    Raises:
        NotFound: there is none for this actor.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        pools = _pools([own_deployment(actor, deployment_id)])
    if not pools:
        raise NotFound("This deployment serves no version.")
    return pools[0]


def list_pools(*, actor: Actor) -> list[Pool]:
    """Return the KV pool of every deployment, by owner and name: for those who run the platform."""
    require(actor, Permission.PLATFORM_FLEET)
    with reading_as(actor):
        return _pools(list(Deployment.objects.exclude(state=DeploymentState.DELETED).order_by("owner", "name")))


def by_tenant(pools: Iterable[Pool]) -> dict[str, list[tuple[Pool, TenantPool]]]:
    """Return the same figures by tenant: each slug with the pools it has a share in."""
    found: dict[str, list[tuple[Pool, TenantPool]]] = defaultdict(list)
    for pool in pools:
        for tenant in pool.tenants:
            found[tenant.tenant].append((pool, tenant))
    return dict(sorted(found.items()))


def _pools(deployments: Sequence[Deployment]) -> list[Pool]:
    ids = [deployment.pk for deployment in deployments]
    arms: dict[str, list[DeploymentArm]] = defaultdict(list)
    for arm in DeploymentArm.objects.filter(deployment_id__in=ids).select_related("version"):
        arms[arm.deployment_id].append(arm)
    grants: dict[str, list[Grant]] = defaultdict(list)
    for grant in Grant.objects.filter(deployment_id__in=ids).order_by("grantee_slug"):
        grants[grant.deployment_id].append(grant)
    serving: dict[str, list[ReplicaReport]] = defaultdict(list)
    for row in ReplicaRow.objects.filter(deployment_id__in=ids, state=ReplicaState.READY):
        serving[row.deployment_id].append(replica_report(row))
    return [_pool(each, arms[each.pk], grants[each.pk], serving[each.pk]) for each in deployments if arms[each.pk]]


def _pool(
    deployment: Deployment,
    arms: Sequence[DeploymentArm],
    grants: Sequence[Grant],
    serving: Sequence[ReplicaReport],
) -> Pool:
    loads = [report.load for report in serving if report.load is not None]
    return Pool(
        deployment=deployment,
        pool_tokens=pool_tokens(largest(arm.version.checked_config for arm in arms), deployment.engine),
        grants=tuple(grants),
        ready_replicas=len(serving),
        total_tokens=sum(load.total_blocks * load.block_size for load in loads),
        used_tokens=sum(load.owned_blocks * load.block_size for load in loads),
        cached_tokens=sum(load.cached_blocks * load.block_size for load in loads),
        free_tokens=sum(load.free_blocks * load.block_size for load in loads),
        tenants=tuple(_tenant_pool(grant, serving) for grant in grants),
    )


def _tenant_pool(grant: Grant, serving: Sequence[ReplicaReport]) -> TenantPool:
    loads = [
        (report.load.block_size, tenant)
        for report in serving
        if report.load is not None
        for tenant in report.tenants
        if tenant.tenant_id == grant.grantee_id
    ]
    used_tokens = sum(block_size * tenant.owned_blocks for block_size, tenant in loads)
    return TenantPool(
        tenant=grant.grantee_slug,
        share=grant.share,
        used_tokens=used_tokens,
        borrowed_tokens=max(0, used_tokens - grant.guarantee_tokens),
        cached_tokens=sum(block_size * tenant.cached_blocks for block_size, tenant in loads),
        num_running=sum(tenant.num_running for _, tenant in loads),
        num_waiting=sum(tenant.num_waiting for _, tenant in loads),
        num_paused=sum(tenant.num_paused for _, tenant in loads),
    )
