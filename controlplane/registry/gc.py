"""The periodic jobs that end what nothing refers to: blobs after their last reference, folders after their validation.

Ending a blob and making a reference to it happen under one lock (:mod:`controlplane.registry.blobs`), so a blob is
deleted only while no reference to it can be made. A crash in between leaves a blob that is deleted the next time.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Protocol

from django.utils import timezone

from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job
from controlplane.jobs.services import Lease, heartbeat
from controlplane.registry import blobs, stores
from controlplane.registry.models import Artifact
from controlplane.registry.validation import workspace
from dataplane.contracts import failpoints
from tenants.actor import Actor, acting_as

_BATCH = 50
_YOUNG = timedelta(minutes=10)
"""An artifact so young is being stored: leaving it alone saves an upload from storing it twice."""
_WATCHED = timedelta(minutes=10)
"""How long the blob of an ended artifact is deleted again: see :func:`_end_blob`."""


class Deletion(Protocol):
    """What a store must be able to do for its garbage to go."""

    def delete(self, sha256: str) -> None:
        """Delete a blob; one that is not there is fine."""


def collect(lease: Lease) -> None:
    """End every artifact that nothing refers to, and the blobs that no artifact is left of; then stale folders."""
    store = stores.from_settings()
    last = 0
    while batch := _unreferenced(lease.actor, after=last):
        for pk, sha256 in batch:
            end_if_unreferenced(actor=lease.actor, artifact_id=pk, sha256=sha256, store=store)
        last = batch[-1][0]
        heartbeat(lease)
    for sha256 in _ended_lately(lease.actor):
        _end_blob(actor=lease.actor, sha256=sha256, store=store)
    workspace.sweep(lambda job_ids: _running(lease.actor, job_ids))


def end_if_unreferenced(*, actor: Actor, artifact_id: int, sha256: str, store: Deletion) -> bool:
    """End one artifact and, with the last one of its content, the blob; say whether it ended."""
    with acting_as(actor):
        blobs.lock([sha256])
        # Race: a version that refers to it from now on. It waits for this lock, finds no blob, and stores it again.
        free = blobs.unreferenced(Artifact.objects.filter(pk=artifact_id))
        if not free.update(deleted_at=timezone.now()):
            return False
        failpoints.hit("registry.collecting")
        _delete_unclaimed(sha256, store)
        failpoints.hit("registry.collected")
    return True


def _end_blob(*, actor: Actor, sha256: str, store: Deletion) -> None:
    """Delete a blob again whose artifacts ended.

    Race: a worker that stood still between its claim on the bytes and their placing, while its version was deleted and
    the claim ended, places them when it wakes up.
    """
    with acting_as(actor):
        blobs.lock([sha256])
        _delete_unclaimed(sha256, store)


def _delete_unclaimed(sha256: str, store: Deletion) -> None:
    """Delete a blob that no tenant claims, in the transaction that holds its lock."""
    if not Artifact.objects.filter(sha256=sha256, deleted_at=None).exists():
        store.delete(sha256)


def _unreferenced(actor: Actor, *, after: int) -> list[tuple[int, str]]:
    with acting_as(actor):
        old = Artifact.objects.filter(created_at__lt=timezone.now() - _YOUNG, pk__gt=after)
        return list(blobs.unreferenced(old).order_by("pk").values_list("pk", "sha256")[:_BATCH])


def _ended_lately(actor: Actor) -> list[str]:
    with acting_as(actor):
        ended = Artifact.objects.filter(deleted_at__gt=timezone.now() - _WATCHED)
        return sorted(set(ended.values_list("sha256", flat=True)))


def _running(actor: Actor, job_ids: Iterable[str]) -> set[tuple[str, int]]:
    with acting_as(actor):
        jobs = Job.objects.filter(pk__in=list(job_ids), state=JobState.RUNNING)
        return set(jobs.values_list("pk", "fence"))
