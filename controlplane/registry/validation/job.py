"""The job that makes an uploaded version READY or REJECTED.

A step works outside of transactions, then commits what it found under the job's lease and the version's lock. A worker
that dies loses at most the step it was at; the next one finds the others done. What a step does to the world outside
the database (a blob placed, a trial asked for) may be done again and is then the same.
"""

import structlog

from controlplane.jobs import services as jobs
from controlplane.jobs.queue import enqueue
from controlplane.jobs.services import Lease
from controlplane.notifications.events import Event
from controlplane.notifications.services import announce
from controlplane.registry import stores
from controlplane.registry.inspection import InspectionFailed
from controlplane.registry.lifecycle import move
from controlplane.registry.models import Model, ModelVersion, StepState, UploadFile, VersionCheck, VersionState
from controlplane.registry.sweep import discard
from controlplane.registry.validation import steps
from controlplane.registry.validation.attempt import Attempt, Overtaken, Refused
from controlplane.registry.validation.checklist import LINES
from controlplane.registry.validation.trial import FleetAway
from controlplane.registry.validation.workspace import workspace
from dataplane.contracts import failpoints
from tenants import audit
from tenants.actor import acting_as

KIND = "registry.validate"
_log = structlog.get_logger(__name__)


def order_validation(version: ModelVersion) -> None:
    """Write the version's checklist and its job in the open transaction, which makes it VALIDATING. Safe twice."""
    VersionCheck.objects.bulk_create(
        [
            VersionCheck(
                tenant_id=version.tenant_id, version=version, position=position, name=line.name, title=line.title
            )
            for position, line in enumerate(LINES)
        ],
        ignore_conflicts=True,
    )
    enqueue(kind=KIND, key=version.id, payload={"version_id": version.id}, tenant=version.tenant)


def validate(lease: Lease) -> None:
    """Take a version from VALIDATING to READY or REJECTED.

    Raises:
        LeaseLostError: another worker has the job.
        Exception: whatever kept a step from a verdict, such as a store or a fleet that is away; it is tried again.
    """
    with workspace(lease) as folder:
        attempt = Attempt(lease, str(lease.payload["version_id"]), folder, stores.from_settings())
        try:
            _run(attempt)
        except Overtaken:
            _log.info("validation overtaken", version_id=attempt.version_id)
            _discard_parts(attempt)


def _run(attempt: Attempt) -> None:
    try:
        steps.run(attempt)
        _publish(attempt)
    except Refused as refusal:
        _reject(attempt, refusal)
    except (stores.StoreError, InspectionFailed, FleetAway):
        attempt.put_off()
        raise


def _publish(attempt: Attempt) -> None:
    with jobs.completing(attempt.lease):
        # Race: another version of the model with the same content. The model's lock lets one of the two be the first.
        Model.objects.select_for_update(of=("self",), no_key=True).get(versions=attempt.version_id)
        version = attempt.lock()
        steps.refuse_twin(version)
        move(version, VersionState.READY)
        version.save(update_fields=["state"])
        attempt.mark("publish", StepState.PASSED)
        _tell(version, Event.VERSION_READY, f"Version {version.number} of {version.model.name} is ready.")
        audit.record(
            actor=attempt.lease.actor, verb="version.ready", target=version, tenant=version.tenant,
            before={"state": VersionState.VALIDATING.value}, after={"state": version.state, "digest": version.digest},
        )  # fmt: skip
        failpoints.hit("registry.validating.publish")


def _reject(attempt: Attempt, refusal: Refused) -> None:
    """Write what is wrong with the version; lines that were not reached are not run."""
    with jobs.completing(attempt.lease):
        version = attempt.lock()
        rest = VersionCheck.objects.filter(version=version).exclude(state=StepState.PASSED)
        for name in rest.values_list("name", flat=True):
            attempt.mark(name, StepState.NOT_RUN)
        for standing in refusal.standings:
            attempt.mark(standing.line.name, StepState(standing.state), standing.reason, standing.mend)
        move(version, VersionState.REJECTED)
        version.save(update_fields=["state"])
        headline = f"Version {version.number} of {version.model.name} is rejected."
        _tell(version, Event.VERSION_REJECTED, headline, reason=str(refusal)[:500])
        audit.record(
            actor=attempt.lease.actor, verb="version.reject", target=version, tenant=version.tenant,
            before={"state": VersionState.VALIDATING.value},
            after={"state": version.state, "reason": str(refusal)[:500]},
        )  # fmt: skip
        failpoints.hit("registry.validating.reject")
    _discard_parts(attempt)


def _tell(version: ModelVersion, event: Event, headline: str, **more: str) -> None:
    announce(
        tenant=version.tenant,
        event=event,
        subject_id=version.pk,
        data={"model": version.model.name, "number": version.number, "digest": version.digest, **more},
        headline=headline,
        link_path=f"/t/{version.tenant.slug}/versions/{version.pk}",
    )


def _discard_parts(attempt: Attempt) -> None:
    """Remove at once what lies in the store of an upload that has ended: its room is free for its tenant already."""
    with acting_as(attempt.lease.actor):
        files = list(UploadFile.objects.filter(version_id=attempt.version_id))
    discard(files, attempt.store)
