"""How other apps' services put work into the queue."""

from collections.abc import Mapping
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job
from tenants.chain import Json
from tenants.models import Tenant


def enqueue(
    *, kind: str, key: str, payload: Mapping[str, Json], tenant: Tenant | None = None, run_at: datetime | None = None
) -> Job:
    """Add a job to the open transaction, or return the one that ``kind`` and ``key`` name already.

    Args:
        kind: an entry of ``settings.JOB_HANDLERS``.
        key: names the effect among those of its kind; the id of what it is about, as a rule.
        payload: ids that the handler needs.
        tenant: whose work it is; None is the platform's.
        run_at: not before this time; None is now.

    Raises:
        ValueError: the kind has no handler.
        RuntimeError: no transaction is open: the job would not share the fate of the change that asks for it.
    """
    if kind not in settings.JOB_HANDLERS:
        raise ValueError(f"no handler is known for jobs of kind {kind!r}")
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("a job is written in the transaction of the change that asks for it")
    job, _ = Job.objects.get_or_create(
        kind=kind,
        key=key,
        defaults={
            "payload": dict(payload),
            "tenant": tenant,
            "state": JobState.QUEUED.value,
            "run_at": run_at or timezone.now(),
        },
    )
    return job
