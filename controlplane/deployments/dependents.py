"""Who holds on to a thing that somebody wants to end. Asked within the transaction that would end it."""

from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Q
from django.utils import timezone
from django.utils.module_loading import import_string

from controlplane.deployments.models import Deployment, DeploymentArm, DeploymentState
from controlplane.registry.models import ModelVersion
from tenants.models import ApiKey

Question = Callable[[Deployment], list[str]]


@dataclass(frozen=True, slots=True)
class Dependents:
    """What stops working when a deployment ends.

    Args:
        keys: the owner's keys that may call only named deployments, this one among them.
        tenants: the slugs of other tenants that may call it.
    """

    keys: tuple[ApiKey, ...]
    tenants: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.keys or self.tenants)

    @property
    def words(self) -> list[str]:
        """The same for a sentence."""
        return [*(f"the key {key}" for key in self.keys), *(f"the tenant {slug}" for slug in self.tenants)]


def of_deployment(deployment: Deployment) -> Dependents:
    """Return who would miss ``deployment``."""
    live = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    keys = ApiKey.objects.filter(live, tenant_id=deployment.tenant_id, revoked_at=None)
    guests = deployment.grants.exclude(grantee_id=deployment.tenant_id)
    return Dependents(
        keys=tuple(keys.filter(deployment_ids__contains=[deployment.id]).order_by("name", "id")),
        tenants=tuple(guests.order_by("grantee_slug").values_list("grantee_slug", flat=True)),
    )


def holders(deployment: Deployment) -> list[str]:
    """Return what goes on with ``deployment`` and needs it as it is, in words such as "the rollout rol_...".

    Race: a rollout that begins at the same moment. Call this with the deployment locked; who begins one locks it too.
    """
    questions: list[Question] = [import_string(path) for path in settings.DEPLOYMENT_HOLDERS]
    return [holder for question in questions for holder in question(deployment)]


def of_version(version: ModelVersion) -> list[str]:
    """Return the living deployments that serve ``version``, in words."""
    arms = DeploymentArm.objects.filter(version=version).exclude(deployment__state=DeploymentState.DELETED)
    names = arms.order_by("deployment__name").values_list("deployment__name", flat=True).distinct()
    return [f"the deployment {name}" for name in names]
