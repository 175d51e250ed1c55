"""What a share would do if it were set now: for whoever sees the pool, and before anything is changed."""

from collections.abc import Mapping, Sequence

from controlplane.deployments.bounds import share_faults
from controlplane.deployments.capacity import DoesNotFit, check_shares, largest
from controlplane.deployments.effect import Effect, Held, PoolSize, effect
from controlplane.deployments.models import DeploymentArm
from controlplane.deployments.selectors.pools import Pool, get_pool
from dataplane.contracts.catalog import Share
from dataplane.contracts.model_config import ModelConfig
from tenants.actor import Actor, reading_as


def preview_share(*, actor: Actor, deployment_id: str, tenant: str, share: Share) -> Effect:
    """Return what giving ``tenant``, by its slug, a share would do now; where it would be refused, with the reason.

    Raises:
        NotFound: there is no such deployment for this actor.
    """
    with reading_as(actor):
        pool = get_pool(actor=actor, deployment_id=deployment_id)
        arms = DeploymentArm.objects.filter(deployment_id=deployment_id).select_related("version")
        configs = [arm.version.checked_config for arm in arms]
    shares = {grant.grantee_slug: grant.share for grant in pool.grants}
    held = {
        each.tenant: Held(each.used_tokens, each.cached_tokens, each.num_running + each.num_paused)
        for each in pool.tenants
    }
    refusal = _refusal(pool, configs, share, shares | {tenant: share})
    return effect(tenant, share, shares, held, pool=_size(pool, configs), refusal=refusal)


def _refusal(pool: Pool, configs: Sequence[ModelConfig], share: Share, shares: Mapping[str, Share]) -> str:
    faults = share_faults(share)
    if faults:
        return " ".join(f"{field}: {reason}" for field, reason in faults.items())
    try:
        check_shares(largest(configs), pool.deployment.engine, shares, min_replicas=pool.deployment.min_replicas)
    except DoesNotFit as error:
        return str(error)
    return ""


def _size(pool: Pool, configs: Sequence[ModelConfig]) -> PoolSize:
    deployment = pool.deployment
    longest_tokens = min(config.context_tokens for config in configs)
    return PoolSize(
        block_size=deployment.block_size,
        blocks=pool.pool_tokens // deployment.block_size,
        replicas=max(1, deployment.min_replicas, pool.ready_replicas),
        min_replicas=max(1, deployment.min_replicas),
        longest_tokens=min(longest_tokens, deployment.max_model_len or longest_tokens),
    )
