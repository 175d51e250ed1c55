"""The things that the routes of the matrix are asked about: one of each kind, all of them acme's.

Whoever adds a route with an argument adds the thing here, under the name of the argument.
"""

from datetime import timedelta

from django.utils import timezone
from django_fixtures import Personas
from domain import PLATFORM, deploy, make_version
from spool_records import Life
from telling import hook, tell

from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job
from controlplane.metering.services import ingest
from controlplane.notifications.models import Delivery
from controlplane.registry.lifecycle import set_alias
from controlplane.registry.parts import FilePlan
from controlplane.registry.uploads import begin_upload
from controlplane.rollouts.services import create_rollout
from tenants import services
from tenants.actor import acting_as, member_actor
from tenants.roles import Role, Scope


class NoBytes:
    """A store of uploads whose bytes nobody sends."""

    def begin(self, key: str) -> str:
        return f"{key} "


def build(personas: Personas) -> dict[str, str]:
    """Make the things and return them by the names of URL arguments; besides, the keys' texts."""
    alice, mallory = member_actor(personas.alice, "acme"), member_actor(personas.mallory, "evil")
    issued = services.issue_key(actor=alice, name="of acme", scopes=list(Scope))
    evil = services.issue_key(actor=mallory, name="of evil", scopes=list(Scope))
    invited = services.invite_member(actor=alice, email="dave@acme.example", role=Role.VIEWER)
    services.playground_key(actor=alice)
    version = make_version(personas.acme)
    deployment = deploy(personas.acme, version=version)
    rollout = create_rollout(
        actor=alice, deployment_id=deploy(personas.acme, name="moving").id, candidate_version_id=version.id
    )
    set_alias(actor=alice, model_id=version.model_id, name="stable", version_id=version.id)
    files = [FilePlan("config.json", 1_000)]
    upload = begin_upload(actor=alice, model=version.model.name, files=files, store=NoBytes())  # type: ignore[arg-type]
    job_id = dead_job()
    request = Life(personas.acme.id, key_id=issued.key.id, deployment_id=deployment.id)
    ingest(actor=PLATFORM, records=request.whole())
    webhook = hook(personas.alice, "https://hooks.example/pagoda")
    told = tell(personas.acme)
    with acting_as(PLATFORM):
        Delivery.objects.update(next_at=timezone.now() + timedelta(hours=1))  # it failed, and waits
    return {
        "tenant": "acme",
        "slug": "acme",
        "key_id": issued.key.id,
        "user_id": personas.carol.id,
        "invitation_id": invited.invitation.id,
        "token": invited.token,
        "model_id": version.model_id,
        "version_id": version.id,
        "alias": "stable",
        "model": version.model.name,
        "upload_id": upload.version.id,
        "name": "config.json",
        "number": "1",
        "deployment_id": deployment.id,
        "request_id": request.request_id,
        "job_id": job_id,
        "rollout_id": rollout.id,
        "webhook_id": webhook.id,
        "message_id": told.id,
        "acme_key": issued.text,
        "evil_key": evil.text,
    }


def dead_job() -> str:
    """Write a job that failed for good; return its id."""
    now = timezone.now()
    with acting_as(PLATFORM):
        dead = Job.objects.create(
            kind="metering.roll_up", key="of a story", state=JobState.DEAD, run_at=now, attempts=3, ended_at=now
        )
    return str(dead.pk)
