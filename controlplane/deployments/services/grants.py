"""Lets tenants call a deployment, and shares its KV pool out."""

from django.db.models import F

from controlplane.deployments import bounds
from controlplane.deployments.models import DeploymentState, Grant
from controlplane.deployments.services import rows
from dataplane.contracts.catalog import Share
from tenants import audit
from tenants.actor import Actor, acting_as, require, system_actor
from tenants.chain import Json
from tenants.errors import Conflict, Forbidden, NotFound
from tenants.models import Tenant
from tenants.outbox import Topic
from tenants.roles import Permission

_SHARED = [name for name in Share.__struct_fields__ if name != "cache_epoch"]
"""What of a grant is set together."""
_CACHE_KEEPER = system_actor("prefix cache")


def set_grant(*, actor: Actor, deployment_id: str, grantee_slug: str, share: Share) -> Grant:
    """Let a tenant call a deployment, or change its share there. The owner's own share is set the same way.

    The share's ``cache_epoch`` is not looked at: :func:`rotate_cache` counts it.

    Raises:
        Forbidden: the actor may not share this deployment; only the platform lets other tenants in.
        NotFound: there is no such deployment or tenant for the actor.
        Invalid: the shares do not fit the KV pool; the message has the numbers.
    """
    _require_own(actor, grantee_slug, "lets another tenant call a deployment")
    bounds.refuse(bounds.share_faults(share))
    with acting_as(actor):
        deployment = rows.locked_deployment(actor, deployment_id)
        grantee = Tenant.objects.filter(slug=grantee_slug).first()
        if grantee is None:
            raise NotFound(f"There is no tenant {grantee_slug!r}.")
        grants = {grant.grantee_slug: grant for grant in deployment.grants.all()}
        shares = {slug: grant.share for slug, grant in grants.items()} | {grantee_slug: share}
        # Race: two guarantees that fit alone and not together. The deployment's lock lets the second see the first.
        rows.require_fit(
            rows.served_versions(deployment), deployment.engine, shares, deployment.min_replicas,
            at_fault=["guarantee_tokens"],
        )  # fmt: skip
        grant = grants.get(grantee_slug) or Grant(
            tenant_id=deployment.tenant_id, deployment=deployment, grantee=grantee, grantee_slug=grantee_slug
        )
        before = grant.share if grantee_slug in grants else None
        for field in _SHARED:
            setattr(grant, field, getattr(share, field))
        # Race: the epoch is raised at this moment, without the deployment's lock.
        grant.save(update_fields=None if before is None else _SHARED)
        _journal(actor, "grant.set", grant, before, share)
    return grant


def remove_grant(*, actor: Actor, deployment_id: str, grantee_slug: str) -> None:
    """Take a tenant's leave to call a deployment back; its running streams are cut within seconds.

    Raises:
        Forbidden: the actor does not let tenants in.
        NotFound: there is no such deployment, or the tenant may not call it.
        Conflict: the owner's own leave ends with the deployment.
    """
    require(actor, Permission.PLATFORM_GRANTS)
    with acting_as(actor):
        deployment = rows.locked_deployment(actor, deployment_id)
        if grantee_slug == deployment.owner:
            raise Conflict("The owner may always call its deployment. Pause or delete the deployment instead.")
        grant = deployment.grants.filter(grantee_slug=grantee_slug).first()
        if grant is None:
            raise NotFound(f"{grantee_slug} may not call this deployment.")
        grant.delete()
        _journal(actor, "grant.remove", grant, grant.share, None)


def rotate_cache(*, actor: Actor, deployment_id: str, grantee_slug: str) -> Grant:
    """Forget what a tenant has cached of its prompts on a deployment, by changing the salt. What runs goes on.

    A tenant does it for itself, on a deployment of another tenant too; the platform does it for anybody.

    Raises:
        Forbidden: the actor may not change deployments, or means another tenant's cache.
        NotFound: there is no such deployment, or the tenant may not call it.
    """
    _require_own(actor, grantee_slug, "empties another tenant's cache")
    # The row of a guest's leave is the owner's, and the guest's cache its own: the platform writes it, for either.
    with acting_as(_CACHE_KEEPER):
        grants = Grant.objects.filter(deployment_id=deployment_id, grantee_slug=grantee_slug)
        # One statement: of two rotations at once each counts, and none waits for a change of the deployment.
        if not grants.exclude(deployment__state=DeploymentState.DELETED).update(cache_epoch=F("cache_epoch") + 1):
            raise NotFound("There is no such deployment.")
        grant = grants.select_related("deployment__tenant", "grantee").get()
        rows.announce(Topic.GRANT, grant.deployment)
        audit.record(
            actor=actor, verb="cache.rotate", target=grant.deployment, tenant=grant.grantee,
            before={"cache_epoch": grant.cache_epoch - 1}, after={"cache_epoch": grant.cache_epoch},
        )  # fmt: skip
    return grant


def _journal(actor: Actor, verb: str, grant: Grant, before: Share | None, after: Share | None) -> None:
    """Announce and record. The deployment is the target: its page tells the whole of its story."""
    rows.announce(Topic.GRANT, grant.deployment)

    def told(share: Share | None) -> dict[str, Json]:
        return (
            {} if share is None else {"tenant": grant.grantee_slug} | {name: getattr(share, name) for name in _SHARED}
        )

    audit.record(
        actor=actor, verb=verb, target=grant.deployment, tenant=grant.deployment.tenant,
        before=told(before), after=told(after),
    )  # fmt: skip


def _require_own(actor: Actor, grantee_slug: str, act: str) -> None:
    """Require leave to change a grant: the platform has it for any, a tenant for its own."""
    if actor.is_platform:
        require(actor, Permission.PLATFORM_GRANTS)
        return
    require(actor, Permission.DEPLOYMENTS_WRITE)
    if grantee_slug != actor.tenant.slug:
        raise Forbidden(f"Only the platform {act}. Ask an administrator.")
