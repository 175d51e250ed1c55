"""A story that is announced, and the deliverer that works off what is due."""

from datetime import timedelta

from django.utils import timezone

from controlplane.jobs.services import Lease
from controlplane.notifications import jobs
from controlplane.notifications.events import Event
from controlplane.notifications.models import Announcement, Delivery, Webhook
from controlplane.notifications.services import announce, create_webhook
from tenants.actor import acting_as, member_actor, system_actor
from tenants.models import Tenant, User

SYSTEM = system_actor("tests")
EVENT = Event.VERSION_READY
SUBJECT = "ver_01jde3j1cp0000000000000000"


def hook(owner: User, url: str, *events: Event, slug: str = "acme") -> Webhook:
    """Make a webhook that wants ``events``, or the story's."""
    return issued(owner, url, *events, slug=slug).webhook


def issued(owner: User, url: str, *events: Event, slug: str = "acme"):
    return create_webhook(actor=member_actor(owner, slug), url=url, events=events or [EVENT])


def tell(tenant: Tenant, **more: object) -> Announcement:
    """Announce that a version is ready."""
    words = {"headline": "Version 3 of tiny is ready.", "link_path": "/t/acme/versions/v3", "data": {"number": 3}}
    with acting_as(SYSTEM):
        return announce(tenant=tenant, **({"event": EVENT, "subject_id": SUBJECT} | words | more))


def deliver() -> None:
    """Work off what is due, as the job does."""
    jobs.deliver(Lease(job_id="job_of_a_test", kind="notifications.deliver", key="now", payload={}, fence=1))


def let_time_pass() -> None:
    """Make every waiting delivery due, and let the claims of the dead run out."""
    past = timezone.now() - timedelta(seconds=1)
    with acting_as(SYSTEM):
        waiting = Delivery.objects.filter(state="waiting")
        waiting.update(next_at=past)
        waiting.filter(claimed_until__isnull=False).update(claimed_until=past)


def only_delivery() -> Delivery:
    with acting_as(SYSTEM):
        return Delivery.objects.select_related("webhook", "announcement").get()
