"""Uploads completed, aborted, expired and begun at once, on real PostgreSQL and a real folder."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from django.utils import timezone
from domain import PLATFORM
from racing import MANY, at_once
from uploading import FILES, PART_BYTES, announce, begin, part_of, send_parts

from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job
from controlplane.jobs.run import run_job
from controlplane.registry import storage, stores, uploads
from controlplane.registry.models import Artifact, ModelVersion, UploadPart
from controlplane.registry.stores.local import LocalStore
from controlplane.registry.uploads import Upload
from tenants.actor import Actor, acting_as, member_actor
from tenants.errors import Conflict, Invalid
from tenants.models import AuditEvent
from tenants.services.quotas import set_tenant_storage
from tenants.storage import StorageLimits


@pytest.fixture
def store(settings, tmp_path: Path) -> LocalStore:
    settings.PAGODA_UPLOAD_PART_BYTES = PART_BYTES
    settings.PAGODA_HOME = tmp_path
    return LocalStore(tmp_path / "store")


@pytest.fixture
def bob(committed, personas) -> Iterator[Actor]:
    return member_actor(personas.bob, "acme")


def whole(bob: Actor, store: LocalStore) -> Upload:
    upload = begin(bob, store)
    send_parts(bob, store, upload)
    return upload


def verbs(version_id: str) -> Counter[str]:
    with acting_as(PLATFORM):
        return Counter(AuditEvent.objects.filter(target_id=version_id).values_list("verb", flat=True))


def lying(store: LocalStore) -> set[str]:
    """The versions of which something lies in the store."""
    return {stores.key_of(upload).partition("/")[0] for upload in store.uploads()}


@pytest.mark.parametrize("times", MANY)
def test_an_upload_that_all_complete_and_abort_at_once_ends_once(bob, store, times):
    for _ in range(3):
        version_id = whole(bob, store).version.id
        ends = [uploads.complete_upload, uploads.abort_upload] * (times // 2)
        results = at_once(*(partial(end, actor=bob, version_id=version_id, store=store) for end in ends))
        (winner,) = [result for result in results if isinstance(result, ModelVersion)]
        # who looks at the store after an abort took the parts away hears what is missing
        assert all(isinstance(result, (Conflict, Invalid)) for result in results if result is not winner)
        completed = winner.state == "validating"
        with acting_as(PLATFORM):
            version = ModelVersion.objects.get(pk=version_id)
            jobs = Job.objects.filter(kind="registry.validate", key=version_id).count()
            parts = UploadPart.objects.filter(file__version=version).count()
        assert (version.state, jobs, parts) == (("validating", 1, 4) if completed else ("rejected", 0, 0))
        ended = verbs(version_id)
        assert (ended["upload.complete"], ended["upload.abort"]) == ((1, 0) if completed else (0, 1))
        assert (version_id in lying(store)) == completed


@pytest.mark.parametrize("times", MANY)
def test_uploads_begun_at_once_count_each_other(bob, personas, store, times):
    allowed = times // 2
    set_tenant_storage(
        actor=PLATFORM, tenant_id=personas.acme.id,
        limits=StorageLimits(stored_bytes=2_568 * allowed + 2_567, open_uploads=times),
    )  # fmt: skip
    results = at_once(*[partial(begin, bob, store)] * times)
    begun = [result.version for result in results if isinstance(result, Upload)]
    assert len(begun) == allowed
    assert sum(isinstance(result, storage.StorageLimitReached) for result in results) == times - allowed
    assert sorted(version.number for version in begun) == list(range(1, allowed + 1))
    assert len({version.model_id for version in begun}) == 1
    assert lying(store) == {version.id for version in begun}
    assert storage.get_storage(actor=bob).stored_bytes == 2_568 * allowed


@pytest.mark.parametrize("times", MANY)
def test_parts_announced_with_other_bytes_while_it_completes_are_in_or_out(bob, store, times):
    """A completed upload has the parts that had arrived when it was completed, whoever announces what meanwhile."""
    upload = whole(bob, store)
    pieces = [bytes([number % 256]) * PART_BYTES for number in range(times)]
    complete = partial(uploads.complete_upload, actor=bob, version_id=upload.version.id, store=store)
    announces = [partial(announce, bob, store, upload, "model.safetensors", 1, piece) for piece in pieces]
    results = at_once(complete, *announces, complete)
    with acting_as(PLATFORM):
        version = ModelVersion.objects.get()
        first = UploadPart.objects.get(file__name="model.safetensors", number=1)
    if version.state == "validating":
        arrived = store.arrived(f"{version.id}/model.safetensors ")
        assert any(item.is_the(stores.Part(1, first.size_bytes, first.sha256)) for item in arrived)
    else:
        assert all(isinstance(results[at], (Conflict, Invalid)) for at in (0, -1))
        assert version.state == "uploading"


def test_of_a_sweep_and_a_part_at_the_last_moment_one_wins(bob, store):
    for _ in range(5):
        upload = begin(bob, store)
        with acting_as(PLATFORM):
            ModelVersion.objects.filter(pk=upload.version.pk).update(expires_at=timezone.now())
            job = Job(
                kind="registry.sweep_uploads", key=upload.version.id, state=JobState.QUEUED.value,
                run_at=timezone.now(), periodic=True,
            )  # fmt: skip
            job.save(force_insert=True)
        piece = part_of(FILES["config.json"], 1)
        swept, announced = at_once(
            partial(run_job, job.id), partial(announce, bob, store, upload, "config.json", 1, piece)
        )
        assert swept is JobState.DONE
        with acting_as(PLATFORM):
            state = ModelVersion.objects.get(pk=upload.version.pk).state
        assert state == ("rejected" if isinstance(announced, Conflict) else "uploading")
        assert (upload.version.id in lying(store)) == (state == "uploading")


def test_no_race_of_uploads_leaves_a_claim_on_bytes(bob, store):
    uploads_ = [whole(bob, store) for _ in range(4)]
    calls = [
        partial(uploads.abort_upload, actor=bob, version_id=upload.version.id, store=store) for upload in uploads_ * 3
    ]
    results = at_once(*calls)
    assert sum(isinstance(result, ModelVersion) for result in results) == 4
    kept = storage.get_storage(actor=bob)
    assert (kept.stored_bytes, kept.stored_files, kept.open_uploads) == (0, 0, 0)
    assert [path for path in store.root.rglob("*") if path.is_file()] == []
    with acting_as(PLATFORM):
        assert not Artifact.objects.exists()
