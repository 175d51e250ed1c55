"""Running one job: claim it, call the handler of its kind, commit or fail."""

import os
import socket
from collections.abc import Callable

import structlog
from django.conf import settings
from django.utils.module_loading import import_string

from controlplane.jobs import services
from controlplane.jobs.lease import JobState, LeaseLostError
from controlplane.jobs.services import Lease
from tenants import audit

Handler = Callable[[Lease], None]
"""Does the work. It commits its effect within ``services.completing(lease)``; one that has no effect of its own, or
calls services that are safe twice, may leave that to the runner. Long work calls ``services.heartbeat(lease)``."""

_log = structlog.get_logger(__name__)


def run_job(job_id: str) -> JobState | None:
    """Run a job where it is due, and return the state it was left in; None where it was not this worker's to run."""
    worker = f"{socket.gethostname()}:{os.getpid()}"
    lease = services.claim(job_id=job_id, worker=worker)
    if lease is None:
        return None
    origin = audit.Origin(request_id=lease.job_id, address=f"job {lease.kind}")
    with structlog.contextvars.bound_contextvars(job_id=job_id, job_kind=lease.kind), audit.originating(origin):
        try:
            return _attempt(lease)
        except LeaseLostError as lost:
            # Somebody else has the job, or it has ended: there is nothing left here to decide.
            _log.warning("job lease lost", reason=str(lost))
            return None


def _attempt(lease: Lease) -> JobState:
    try:
        handler: Handler = import_string(settings.JOB_HANDLERS[lease.kind])
        handler(lease)
        if not lease.completed:
            with services.completing(lease):
                pass
    except LeaseLostError:
        raise
    except Exception as error:  # noqa: BLE001
        # Any fault of a handler is a failed attempt: the row says why, and the queue goes on.
        _log.exception("job failed")
        return services.fail(lease, f"{type(error).__name__}: {error}")
    return JobState.DONE
