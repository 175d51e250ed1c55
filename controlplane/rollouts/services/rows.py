"""Rollouts under their locks, and the one way in which a transition is written."""

from datetime import datetime

from django.db import connection
from django.db.models import QuerySet

from controlplane.deployments.models import Deployment
from controlplane.deployments.services.arms import set_arms
from controlplane.rollouts import evidence
from controlplane.rollouts.models import SHARED_FIELDS, Rollout, RolloutEvent
from controlplane.rollouts.services import telling
from controlplane.rollouts.states import TERMINAL, RolloutState
from controlplane.rollouts.view import Decision, View, arms_of, candidate_weight
from dataplane.contracts import failpoints
from tenants import audit
from tenants.actor import Actor
from tenants.chain import Json
from tenants.errors import Conflict, NotFound
from tenants.models import User

TEXT_MAX_CHARS = 1000


def database_now() -> datetime:
    """Return the one clock by which rollouts go, whichever process asks."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        row = cursor.fetchone()
    assert row is not None  # noqa: S101  # a SELECT without FROM has one row
    now: datetime = row[0]
    return now


def deployment_of(actor: Actor, rollout_id: str) -> str:
    """Return the id of the deployment of a rollout that the actor may see.

    Raises:
        NotFound: there is none for the actor.
    """
    found = _visible(actor).filter(pk=rollout_id).values_list("deployment_id", flat=True).first()
    if found is None:
        raise NotFound("There is no such rollout.")
    return found


def locked(actor: Actor, rollout_id: str) -> tuple[Deployment, Rollout]:
    """Lock a rollout that the actor may see, its deployment first: that lock puts all changes of it in line.

    Raises:
        NotFound: there is none for the actor.
    """
    deployment = Deployment.objects.select_for_update(no_key=True).get(pk=deployment_of(actor, rollout_id))
    rollouts = _visible(actor)
    return deployment, rollouts.select_related("tenant").select_for_update(no_key=True, of=("self",)).get(pk=rollout_id)


def _visible(actor: Actor) -> QuerySet[Rollout]:
    return Rollout.objects.all() if actor.is_platform else Rollout.objects.for_tenant(actor.tenant)


def require_revision(rollout: Rollout, expected: int) -> None:
    """Refuse who has not seen the rollout as it is.

    Raises:
        Conflict: it has moved on.
    """
    if rollout.revision != expected:
        raise Conflict(
            f"The rollout has moved on since you read it (revision {expected}, now {rollout.revision}: "
            f"{rollout.state.replace('_', ' ')}). Read it again, then decide."
        )


def transit(
    *,
    actor: Actor,
    deployment: Deployment,
    rollout: Rollout,
    decision: Decision,
    verb: str,
    approver: User | None = None,
) -> None:
    """Write a transition of a locked rollout: row, arms, journal, announcement and audit row, in the open transaction.

    Raises:
        Conflict: the row was changed without its lock.
    """
    before, after = rollout.view, decision.after
    old_revision, old_state = rollout.revision, rollout.state
    _copy(after, rollout)
    rollout.revision += 1
    if approver is not None:
        rollout.approved_by, rollout.approved_at = approver, after.entered_at
        rollout.approved_digest = rollout.candidate_digest
    # The lock has put all who change it in line; the comparison would catch one who did not take it.
    fields = ["approved_by_id", "approved_at", "approved_digest", "waivers", "revision", "state", "reason"]
    fields += ["paused_from", "ended_at", "stumble", *SHARED_FIELDS]
    if not Rollout.objects.filter(pk=rollout.pk, revision=old_revision).update(
        **{name: getattr(rollout, name) for name in fields}
    ):
        raise Conflict("The rollout was changed at the same moment. Read it again, then decide.")
    if arms_of(before) != decision.arms:
        set_arms(deployment, decision.arms)
    judged, digest = evidence_of(decision, rollout)
    write_event(actor=actor, rollout=rollout, old=old_state, cause=decision.cause, evidence=judged)
    if rollout.state != old_state:
        telling.announce(rollout, deployment)
    audit.record(
        actor=actor, verb=verb, target=rollout, tenant=rollout.tenant,
        before={"state": old_state, "step": before.step, "weight": candidate_weight(before)},
        after={
            "state": rollout.state, "step": after.step, "weight": candidate_weight(after), "cause": decision.cause,
            "deployment": deployment.name, **_sealed(digest), **_approval(rollout, approver),
        },
    )  # fmt: skip
    failpoints.hit(f"rollouts.{rollout.state}.before_commit")


def committed(rollout: Rollout) -> Rollout:
    """Pass the point after the commit of the rollout's transition."""
    failpoints.hit(f"rollouts.{rollout.state}.after_commit")
    return rollout


def write_event(*, actor: Actor, rollout: Rollout, old: str, cause: str, evidence: dict[str, Json]) -> None:
    """Append to the journal. Its number is the revision: a transition that was made twice would be refused."""
    RolloutEvent.objects.create(
        tenant_id=rollout.tenant_id,
        rollout=rollout,
        sequence=rollout.revision,
        at=rollout.entered_at,
        old=old,
        new=rollout.state,
        step=rollout.step,
        weight=candidate_weight(rollout.view),
        cause=cause[:TEXT_MAX_CHARS],
        actor_label=actor.label,
        evidence=evidence,
    )


def evidence_of(decision: Decision, rollout: Rollout) -> tuple[dict[str, Json], str]:
    """Return all that was judged and its digest, as the journal and the audit keep them; empty where nothing was."""
    if decision.judgement is None:
        return {}, ""
    preflight = RolloutEvent.objects.filter(rollout=rollout, old=RolloutState.PREFLIGHT).values_list("cause", flat=True)
    return evidence.bundle(plan=decision.after.plan, judgement=decision.judgement, memory=preflight.last() or "")


def _copy(after: View, rollout: Rollout) -> None:
    for name in SHARED_FIELDS:
        setattr(rollout, name, getattr(after, name))
    rollout.state = after.state.value
    rollout.paused_from = after.paused_from.value if after.paused_from else ""
    rollout.reason = after.reason[:TEXT_MAX_CHARS]
    rollout.ended_at = (rollout.ended_at or after.entered_at) if after.state in TERMINAL else None
    rollout.stumble = ""


def _sealed(digest: str) -> dict[str, Json]:
    """The digest of what was judged: the chain of the audit then vouches for the journal's evidence."""
    return {"evidence_sha256": digest} if digest else {}


def _approval(rollout: Rollout, approver: User | None) -> dict[str, Json]:
    if approver is None:
        return {}
    return {"approved_digest": rollout.approved_digest, "approved_step": rollout.approved_step,
            "waivers": rollout.waivers}  # fmt: skip
