"""Whom a transition is announced to, and in which words."""

from django.db.models import Q, QuerySet

from controlplane.deployments.models import Deployment
from controlplane.notifications import services as notifications
from controlplane.notifications.events import Event
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.states import RolloutState
from tenants.models import Member, User
from tenants.roles import Role

_EVENTS = {
    RolloutState.PREFLIGHT: (Event.ROLLOUT_STARTED, "has started"),
    RolloutState.AWAITING_APPROVAL: (Event.ROLLOUT_AWAITING_APPROVAL, "waits for an approval"),
    RolloutState.PAUSED: (Event.ROLLOUT_PAUSED, "is paused"),
    RolloutState.ROLLED_BACK: (Event.ROLLOUT_ROLLED_BACK, "was rolled back"),
    RolloutState.PROMOTED: (Event.ROLLOUT_PROMOTED, "is promoted"),
    RolloutState.ABORTED: (Event.ROLLOUT_ABORTED, "was aborted"),
}


def announce(rollout: Rollout, deployment: Deployment) -> None:
    """Announce the state that the rollout has come to, where somebody wants to hear of it."""
    state = RolloutState(rollout.state)
    if state not in _EVENTS:
        return
    event, words = _EVENTS[state]
    version = rollout.candidate_version
    headline = f"The rollout of {version.model.name} version {version.number} to {deployment.name} {words}."
    notifications.announce(
        tenant=rollout.tenant,
        event=event,
        subject_id=rollout.id,
        data={
            "deployment_id": deployment.id, "deployment": deployment.name, "state": state.value,
            "candidate_version_id": rollout.candidate_version_id, "stable_version_id": rollout.stable_version_id,
            "step": rollout.step, "reason": rollout.reason,
        },
        people=_approvers(rollout) if state is RolloutState.AWAITING_APPROVAL else _concerned(rollout),
        headline=f"{headline} {rollout.reason}".strip(),
        link_path=f"/t/{deployment.owner}/rollouts/{rollout.id}",
        platform_link_path=f"/platform/rollouts/{rollout.id}",
    )  # fmt: skip


def _approvers(rollout: Rollout) -> list[User]:
    owners = Member.objects.filter(tenant_id=rollout.tenant_id, role=Role.OWNER)
    return list(_among(owners).exclude(pk=rollout.author_user_id))


def _concerned(rollout: Rollout) -> list[User]:
    """Who made it and who approved it, of those who may still see it."""
    members = Member.objects.filter(tenant_id=rollout.tenant_id)
    return list(_among(members).filter(pk__in=[rollout.author_user_id, rollout.approved_by_id]))


def _among(members: QuerySet[Member]) -> QuerySet[User]:
    """The people behind ``members``, and those who run the platform."""
    may_see = Q(pk__in=members.values("user_id")) | Q(is_platform_admin=True)
    return User.objects.filter(may_see, is_active=True).order_by("email")
