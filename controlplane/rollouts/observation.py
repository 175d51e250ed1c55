"""What the machine can see of a rollout, all of it from PostgreSQL: replicas as reported, what has settled.

It reads as one of the product's own processes, in a transaction of its own: nodes and outbox are the platform's.
"""

from collections.abc import Sequence
from datetime import timedelta

import msgspec
from django.utils import timezone

from controlplane.deployments.models import Deployment, DeploymentState, ReplicaRow
from controlplane.rollouts import evidence, side_by_side
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.plan import MAX_SAMPLES
from controlplane.rollouts.states import RolloutState
from controlplane.rollouts.view import Fit, Judgement, Observation, View, arms_of, has_weight
from dataplane.contracts import arms, catalog
from dataplane.contracts.replica import ReplicaReport, ReplicaState
from tenants.actor import acting_as, system_actor
from tenants.models import OutboxEvent
from tenants.outbox import Topic

HEARD_WITHIN = timedelta(seconds=15)
"""A fleet reports each second: what one said before that long is not known any more."""
_WATCHER = system_actor("rollouts")


def observe(rollout_id: str) -> Observation:
    """Return what is seen of a rollout now; of one that is gone, nothing."""
    with acting_as(_WATCHER):
        rollout = Rollout.objects.select_related("deployment").filter(pk=rollout_id).first()
        if rollout is None:
            return Observation()
        return _observe(rollout, rollout.view)


def _observe(rollout: Rollout, view: View) -> Observation:
    deployment = rollout.deployment
    reported = _reported(deployment)
    candidate = [row for row in reported if row.version_id == view.candidate_version_id]
    fit = planned(rollout) if view.state is RolloutState.PREFLIGHT else None
    judgement, samples = judged(rollout, view) if has_weight(view) else (None, 0)
    failing = max(candidate, key=lambda row: row.restarts, default=None)
    return Observation(
        published=_is_published(deployment),
        candidate_ready=_ready(candidate),
        candidate_wanted=_wanted(deployment, view),
        failed_starts=failing.restarts if failing is not None else 0,
        trouble=failing.cause if failing is not None and failing.restarts else "",
        served=deployment.state == DeploymentState.ACTIVE,
        previous_ready=_ready([row for row in reported if row.version_id == view.stable_version_id]),
        fit=fit,
        judgement=judgement,
        samples=samples,
    )


def judged(rollout: Rollout, view: View) -> tuple[Judgement | None, int]:
    """Return what the judge says of the candidate by now, and how many samples it has of the arm that has fewer.

    A look at all gates spends some of what the judge may err; the watch for stops, at every other tick, does not.
    """
    since, settings = view.step_started_at or view.entered_at, view.plan.judge
    looks = view.state is RolloutState.JUDGE
    # What waits for samples counts them. No other state reads more than a watch needs, least of all one that is paused
    # for days: all tenants' rollouts share the ticks.
    counted = view.here.min_samples if view.state is RolloutState.BAKE else 0
    limit = MAX_SAMPLES if looks else max(evidence.WATCHED_SAMPLES, counted)
    found = evidence.samples(deployment_id=rollout.deployment_id, since=since, limit=limit)
    judgement = found.judge(settings, view.looks + 1) if looks else found.watch(settings)
    return judgement, found.count(view.here, settings)


def planned(rollout: Rollout) -> Fit | None:
    """Return what the memory plan says of both versions side by side; None while no node is heard of."""
    return side_by_side.planned(rollout, kept=_kept(rollout.deployment), heard_since=timezone.now() - HEARD_WITHIN)


def _reported(deployment: Deployment) -> list[ReplicaReport]:
    """The replicas of nodes that are heard of. One that fell silent may have lost them."""
    rows = ReplicaRow.objects.filter(deployment_id=deployment.id, node__seen_at__gte=timezone.now() - HEARD_WITHIN)
    return [msgspec.convert(row.report, ReplicaReport) for row in rows]


def _ready(replicas: Sequence[ReplicaReport]) -> int:
    return sum(row.state is ReplicaState.READY for row in replicas)


def _kept(deployment: Deployment) -> int:
    """How many READY replicas the deployment needs now, as the fleet reckons."""
    entry = catalog.DeploymentEntry(
        id=deployment.id,
        tenant_id=deployment.tenant_id,
        name=deployment.name,
        active=True,
        arms=(),
        grants={},
        engine=deployment.engine,
        min_replicas=deployment.min_replicas,
        max_replicas=deployment.max_replicas,
        schedules=deployment.keep_warm,
    )
    return catalog.kept_replicas(entry, timezone.now().timestamp())


def _wanted(deployment: Deployment, view: View) -> int:
    """How many replicas the candidate's arm calls for, as the fleet reckons."""
    kept = _kept(deployment)
    wanted = [arms.replicas_for(arm, kept) for arm in arms_of(view) if arm.version_id == view.candidate_version_id]
    return max(1, *wanted) if wanted else 1


def _is_published(deployment: Deployment) -> bool:
    waiting = OutboxEvent.objects.filter(published_at=None, topic=Topic.DEPLOYMENT.value)
    return not waiting.filter(payload__deployment_id=deployment.id).exists()
