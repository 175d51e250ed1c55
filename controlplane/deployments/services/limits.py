"""What a tenant has served against what it may."""

from collections.abc import Collection

import msgspec

from controlplane.deployments.models import Deployment, DeploymentState
from tenants.errors import Invalid
from tenants.models import Quota, Tenant
from tenants.serving import DEFAULT_SERVING, ServingLimits

_MENDS = {
    "deployments": "Delete deployments that are not needed",
    "kept_replicas": "Keep fewer here, let other deployments start when they are called",
}


class ServingLimitReached(Invalid):
    """The tenant may not have that much served."""

    code = "serving_limit"


def claim(
    tenant: Tenant, *, deployments: int = 0, kept_replicas: int = 0, at_fault: Collection[str] = ("min_replicas",)
) -> None:
    """Admit so much more in the open transaction, which writes it down; ``at_fault`` are the inputs to look at.

    What does not grow is not refused: a limit that was lowered stops no change for the better.

    Raises:
        ServingLimitReached: it would pass a limit; the message says which, and what is used.
    """
    # Race: deployments of one tenant made, changed or resumed at once. The tenant's row lets them pass one by one, each
    # counting the others. A deployment's lock comes before this one, a version's after it.
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    living = list(Deployment.objects.for_tenant(tenant).exclude(state=DeploymentState.DELETED))
    kept = sum(each.most_kept_replicas for each in living if each.state == DeploymentState.ACTIVE)
    allowed = _limits(tenant)
    for name, used, more in (("deployments", len(living), deployments), ("kept_replicas", kept, kept_replicas)):
        limit = getattr(allowed, name)
        if more > 0 and used + more > limit:
            reason = (
                f"This adds {more} to {used} {name.replace('_', ' ')}, and {limit} are allowed. {_MENDS[name]}, or ask "
                "the platform for a higher limit."
            )
            fields = dict.fromkeys(at_fault, reason) if name == "kept_replicas" else {}
            raise ServingLimitReached(reason, fields=fields)


def _limits(tenant: Tenant) -> ServingLimits:
    quota = Quota.objects.for_tenant(tenant).filter(key=None).first()
    own = msgspec.structs.asdict(quota.serving) if quota else {}
    return msgspec.structs.replace(DEFAULT_SERVING, **{name: own[name] for name in own if own[name] is not None})
