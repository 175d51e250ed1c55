"""The periodic job that keeps the table of jobs small."""

from datetime import timedelta

from django.utils import timezone

from controlplane.jobs import services
from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job

KEPT = timedelta(days=1)


def prune(lease: services.Lease) -> None:
    """Delete periodic jobs that ended well a day ago.

    Others stay: their rows keep an effect from happening twice. Dead ones stay until a person has seen them.
    """
    with services.completing(lease):
        old = Job.objects.filter(periodic=True, state=JobState.DONE.value, ended_at__lt=timezone.now() - KEPT)
        old.delete()
