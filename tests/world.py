"""The things that routes are asked about: one of each kind, acme's or another tenant's.

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
from tenants.actor import acting_as, member_actor, system_actor
from tenants.models import Tenant, User
from tenants.roles import Role, Scope


class NoBytes:
    """A store of uploads whose bytes nobody sends."""

    def begin(self, key: str) -> str:
        return f"{key} "


def build(personas: Personas) -> dict[str, str]:
    """Make acme's things and return them by the names of URL arguments; besides, the texts of both tenants' keys."""
    evil = services.issue_key(actor=member_actor(personas.mallory, "evil"), name="of evil", scopes=list(Scope))
    acme = things(personas.acme, personas.alice)
    job_id = dead_job()
    return acme | {"user_id": personas.carol.id, "job_id": job_id, "acme_key": acme["key"], "evil_key": evil.text}


def canary(slug: str) -> str:
    """Return the text that the names of a tenant's things contain, and that no other tenant may ever read."""
    return f"sesame-{slug}"


def things(tenant: Tenant, owner: User) -> dict[str, str]:
    """Make one thing of each kind that belongs to a tenant; return them by the names of URL arguments."""
    slug, mark, actor = tenant.slug, canary(tenant.slug), member_actor(owner, tenant.slug)
    issued = services.issue_key(actor=actor, name=f"key {mark}", scopes=list(Scope))
    invited = services.invite_member(actor=actor, email=f"dave@{mark}.example", role=Role.VIEWER)
    services.playground_key(actor=actor)
    version = make_version(tenant, f"tiny-{mark}")
    deployment = deploy(tenant, f"chat-{mark}", version=version)
    moving = deploy(tenant, f"moving-{mark}")
    candidate = make_version(tenant, f"tiny-{mark}")
    author = system_actor("tests", tenant)  # nobody of the tenant, so that its owner may approve
    rollout = create_rollout(actor=author, deployment_id=moving.id, candidate_version_id=candidate.id)
    set_alias(actor=actor, model_id=version.model_id, name="stable", version_id=version.id)
    files = [FilePlan("config.json", 1_000)]
    upload = begin_upload(actor=actor, model=version.model.name, files=files, store=NoBytes())  # type: ignore[arg-type]
    request = Life(tenant.id, key_id=issued.key.id, deployment_id=deployment.id)
    ingest(actor=PLATFORM, records=request.whole())
    webhook = hook(owner, f"https://hooks.{mark}.example/pagoda", slug=slug)
    told = tell(tenant, headline=f"Version 3 of tiny-{mark} is ready.")
    with acting_as(PLATFORM):
        Delivery.objects.update(next_at=timezone.now() + timedelta(hours=1))  # it failed, and waits
    return {
        "tenant": slug,
        "slug": slug,
        "key": issued.text,
        "key_id": issued.key.id,
        "invitation_id": invited.invitation.id,
        "token": invited.token,
        "model_id": version.model_id,
        "version_id": version.id,
        "candidate_version_id": candidate.id,
        "alias": "stable",
        "model": version.model.name,
        "upload_id": upload.version.id,
        "name": "config.json",
        "number": "1",
        "deployment_id": deployment.id,
        "request_id": request.request_id,
        "rollout_id": rollout.id,
        "webhook_id": webhook.id,
        "message_id": told.id,
    }


def dead_job() -> str:
    """Write a job that failed for good; return its id."""
    now = timezone.now()
    with acting_as(PLATFORM):
        dead = Job.objects.create(
            kind="metering.roll_up", key="of a story", state=JobState.DEAD, run_at=now, attempts=3, ended_at=now
        )
    return str(dead.pk)
