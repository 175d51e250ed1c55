"""Lets tenants call a deployment, and shares its KV pool out."""

import msgspec

from controlplane.deployments import bounds
from controlplane.deployments.models import Grant
from controlplane.deployments.services import rows
from dataplane.contracts.catalog import Share
from tenants import audit
from tenants.actor import Actor, acting_as, require
from tenants.chain import Json
from tenants.errors import Conflict, Forbidden, NotFound
from tenants.models import Tenant
from tenants.outbox import Topic
from tenants.roles import Permission


def set_grant(*, actor: Actor, deployment_id: str, grantee_slug: str, share: Share) -> Grant:
    """Let a tenant call a deployment, or change its share there. The owner's own share is set the same way.

    Raises:
        Forbidden: the actor may not share this deployment; only the platform lets other tenants in.
        NotFound: there is no such deployment or tenant for the actor.
        Invalid: the shares do not fit the KV pool; the message has the numbers.
    """
    _require_sharing(actor, grantee_slug)
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
        for field, value in msgspec.structs.asdict(share).items():
            setattr(grant, field, value)
        grant.save()
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


def _journal(actor: Actor, verb: str, grant: Grant, before: Share | None, after: Share | None) -> None:
    """Announce and record. The deployment is the target: its page tells the whole of its story."""
    rows.announce(Topic.GRANT, grant.deployment)

    def told(share: Share | None) -> dict[str, Json]:
        return {} if share is None else {"tenant": grant.grantee_slug, **msgspec.structs.asdict(share)}

    audit.record(
        actor=actor, verb=verb, target=grant.deployment, tenant=grant.deployment.tenant,
        before=told(before), after=told(after),
    )  # fmt: skip


def _require_sharing(actor: Actor, grantee_slug: str) -> None:
    if actor.is_platform:
        require(actor, Permission.PLATFORM_GRANTS)
        return
    require(actor, Permission.DEPLOYMENTS_WRITE)
    if grantee_slug != actor.tenant.slug:
        raise Forbidden("Only the platform lets another tenant call a deployment. Ask an administrator.")
