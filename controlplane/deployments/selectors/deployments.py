"""Deployments as the actor may see them."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.db.models import Q, QuerySet

from controlplane.deployments import dependents, standing
from controlplane.deployments.models import Deployment, DeploymentArm, Grant, ReplicaRow
from controlplane.deployments.models import DeploymentState as Life
from controlplane.deployments.selectors.rows import own_deployment, replica_report
from controlplane.deployments.standing import DeploymentState, Standing
from dataplane.contracts.replica import ReplicaReport, ReplicaState
from tenants.actor import Actor, reading_as, require
from tenants.errors import Invalid, NotFound
from tenants.roles import Permission


@dataclass(frozen=True, slots=True)
class DeploymentName:
    """What a tenant calls a deployment. ``is_deleted`` where there is only its usage left."""

    name: str
    is_own: bool
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class DeploymentSummary:
    """A deployment as a list shows it.

    Args:
        deployment: the row.
        name: what this tenant writes as ``model``: ``owner/name`` for another's deployment.
        is_own: whether the tenant owns it; only then arms, replicas and settings are told.
        arms: with version and model loaded, stable first.
        ready_replicas: replicas that serve.
        num_replicas: all that exist.
        state: how it stands.
    """

    deployment: Deployment
    name: str
    is_own: bool
    arms: tuple[DeploymentArm, ...]
    ready_replicas: int
    num_replicas: int
    state: DeploymentState

    @property
    def settings(self) -> Deployment | None:
        """The row for its settings; None for a guest, whom they do not concern."""
        return self.deployment if self.is_own else None


def list_deployments(*, actor: Actor) -> list[DeploymentSummary]:
    """Return what the tenant may call: its own deployments by name, then those it was granted."""
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        return _summaries(actor, _visible(actor))


def get_deployment(*, actor: Actor, deployment_id: str) -> DeploymentSummary:
    """Return one deployment that the tenant may call.

    Raises:
        NotFound: there is none for this actor.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        found = _summaries(actor, _visible(actor).filter(pk=deployment_id))
    if not found:
        raise NotFound("There is no such deployment.")
    return found[0]


def deployment_names(*, actor: Actor, deployment_ids: Collection[str] | None = None) -> dict[str, DeploymentName]:
    """Return what the actor calls deployments, by id: the tenant's own, deleted ones too, then what it may call.

    For the platform they are every tenant's, each as its guests call it.

    Args:
        actor: who calls.
        deployment_ids: only these; None is all.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        found = Deployment.objects.all() if actor.is_platform else _visible_once(actor)
        if deployment_ids is not None:
            found = found.filter(pk__in=deployment_ids)
        rows = [(row, row.tenant_id == getattr(actor.home, "pk", None)) for row in found.order_by("name", "pk")]
    return {
        row.pk: DeploymentName(row.name if is_own else f"{row.owner}/{row.name}", is_own, row.state == Life.DELETED)
        for row, is_own in sorted(rows, key=lambda pair: (pair[0].state == Life.DELETED, not pair[1]))
    }


def check_callable(*, actor: Actor, deployment_ids: Collection[str]) -> None:
    """Refuse deployments that the tenant may not call, before a key is bound to them.

    Raises:
        Invalid: there are such; another tenant's and those that never were are told in the same words.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        callable_ids = set(_visible(actor).filter(pk__in=deployment_ids).values_list("pk", flat=True))
    unknown = sorted(set(deployment_ids) - callable_ids)
    if unknown:
        reason = f"There is no deployment {', '.join(unknown)} that you may call."
        raise Invalid(reason, fields={"deployment_ids": reason})


def find_deployment(*, actor: Actor, name: str) -> DeploymentSummary | None:
    """Return the tenant's own deployment called ``name``, or None."""
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        found = _summaries(actor, _visible(actor).filter(tenant=actor.tenant, name=name))
    return found[0] if found else None


def deployment_state(*, actor: Actor, deployment_id: str) -> DeploymentState:
    """Return how a deployment stands. Raises as :func:`get_deployment` does."""
    return get_deployment(actor=actor, deployment_id=deployment_id).state


def list_dependents(*, actor: Actor, deployment_id: str) -> dependents.Dependents:
    """Return what would stop working if the tenant's own deployment ended.

    Raises:
        Forbidden: the actor may not end it.
        NotFound: it owns none of that id.
    """
    require(actor, Permission.DEPLOYMENTS_WRITE)
    with reading_as(actor):
        return dependents.of_deployment(own_deployment(actor, deployment_id))


def list_serving(*, actor: Actor, version_id: str) -> list[Deployment]:
    """Return the tenant's living deployments that serve a version, by name."""
    require(actor, Permission.DEPLOYMENTS_READ)
    with reading_as(actor):
        own = Deployment.objects.for_tenant(actor.tenant).exclude(state=Life.DELETED)
        return list(own.filter(arms__version_id=version_id).distinct().order_by("name"))


def list_all_deployments(*, actor: Actor) -> list[Deployment]:
    """Return every tenant's deployments, by owner and name: for those who run the platform."""
    require(actor, Permission.PLATFORM_FLEET)
    with reading_as(actor):
        return list(Deployment.objects.exclude(state=Life.DELETED).order_by("owner", "name"))


def _visible(actor: Actor) -> QuerySet[Deployment]:
    return _visible_once(actor).exclude(state=Life.DELETED)


def _visible_once(actor: Actor) -> QuerySet[Deployment]:
    granted = Grant.objects.filter(grantee=actor.tenant).values("deployment_id")
    return Deployment.objects.filter(Q(tenant=actor.tenant) | Q(pk__in=granted))


def _summaries(actor: Actor, deployments: QuerySet[Deployment]) -> list[DeploymentSummary]:
    found = list(deployments)
    ids = [deployment.pk for deployment in found]
    arms: dict[str, list[DeploymentArm]] = defaultdict(list)
    for arm in DeploymentArm.objects.filter(deployment_id__in=ids).select_related("version__model"):
        arms[arm.deployment_id].append(arm)
    replicas: dict[str, list[ReplicaReport]] = defaultdict(list)
    for row in ReplicaRow.objects.filter(deployment_id__in=ids).order_by("replica_id"):
        replicas[row.deployment_id].append(replica_report(row))
    summaries = [_summary(actor, each, tuple(arms[each.pk]), replicas[each.pk]) for each in found]
    return sorted(summaries, key=lambda summary: (not summary.is_own, summary.name))


def _summary(
    actor: Actor, deployment: Deployment, arms: tuple[DeploymentArm, ...], replicas: Sequence[ReplicaReport]
) -> DeploymentSummary:
    is_own = deployment.tenant_id == actor.tenant.pk
    there = [replica for replica in replicas if replica.state is not ReplicaState.STOPPED]
    return DeploymentSummary(
        deployment=deployment,
        name=deployment.name if is_own else f"{deployment.owner}/{deployment.name}",
        is_own=is_own,
        arms=arms,
        ready_replicas=sum(replica.state is ReplicaState.READY for replica in there),
        num_replicas=sum(replica.state is not ReplicaState.COLD for replica in there),
        state=_state(deployment, there, is_own=is_own),
    )


def _state(deployment: Deployment, replicas: Sequence[ReplicaReport], *, is_own: bool) -> DeploymentState:
    if deployment.state == Life.PAUSED:
        return DeploymentState(Standing.PAUSED)
    return standing.judge(replicas) if is_own else DeploymentState(Standing.ACTIVE)
