"""Uploads as their services see them. The store is a folder here; test_stores has what both stores promise."""

import hashlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from domain import PLATFORM, make_version
from object_store import BUCKET, running_object_store
from uploading import FILES, PART_BYTES, announce, begin, part_of, plans, send, send_parts, upload_all

from controlplane.jobs.models import Job
from controlplane.registry import storage, stores, uploads
from controlplane.registry.lifecycle import delete_version
from controlplane.registry.models import Model, ModelVersion, UploadFile, UploadPart, VersionCheck
from controlplane.registry.parts import FilePlan
from controlplane.registry.stores import StoreFull
from controlplane.registry.stores.local import LocalStore
from controlplane.registry.stores.s3 import S3Store
from controlplane.registry.uploads import PartsMissing
from tenants.actor import Actor, acting_as, member_actor
from tenants.errors import Conflict, Forbidden, Invalid, NotFound, Unavailable
from tenants.models import AuditEvent
from tenants.services.quotas import set_tenant_storage
from tenants.storage import DEFAULT_STORAGE, StorageLimits

WEIGHTS = FILES["model.safetensors"]


@pytest.fixture(autouse=True)
def small_parts(settings, tmp_path):
    settings.PAGODA_UPLOAD_PART_BYTES = PART_BYTES
    settings.PAGODA_HOME = tmp_path


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def bob(personas) -> Actor:
    return member_actor(personas.bob, "acme")


def state_of(version_id: str) -> str:
    with acting_as(PLATFORM):
        return ModelVersion.objects.get(pk=version_id).state


def files_of(store: LocalStore) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.is_file()]


# --- the way of an upload


def test_a_version_is_there_from_its_first_byte(bob, store):
    upload = begin(bob, store)
    assert (upload.version.state, upload.version.number, upload.version.size_bytes) == ("uploading", 1, 2568)
    assert upload.part_bytes == PART_BYTES
    assert [(file.name, file.size_bytes, file.parts) for file in upload.files] == [
        ("config.json", 8, 1), ("model.safetensors", 2560, 3),
    ]  # fmt: skip
    assert upload.version.expires_at is not None
    with acting_as(PLATFORM):
        assert ModelVersion.objects.get().digest is None
        assert Model.objects.get().name == "tiny"
        assert AuditEvent.objects.filter(verb="upload.begin").count() == 1


def test_an_upload_is_completed_when_every_part_has_arrived_and_validated_from_then_on(bob, store):
    version = upload_all(bob, store)
    assert (version.state, version.expires_at) == ("validating", None)
    with acting_as(PLATFORM):
        job = Job.objects.get(kind="registry.validate")
        assert (job.key, job.payload, job.tenant_id) == (version.id, {"version_id": version.id}, version.tenant_id)
        assert version.checks.count() > 5
        event = AuditEvent.objects.get(verb="upload.complete")
    assert (event.before, event.after) == ({"state": "uploading"}, {"state": "validating"})
    assert uploads.get_upload(actor=bob, version_id=version.id, store=store).version.state == "validating"


def test_after_a_cut_only_what_is_missing_is_sent(bob, store):
    upload = begin(bob, store)
    send_parts(bob, store, upload, only=[("config.json", 1), ("model.safetensors", 2)])
    announce(bob, store, upload, "model.safetensors", 3, part_of(WEIGHTS, 3))  # its bytes never arrive
    resumed = uploads.get_upload(actor=bob, version_id=upload.version.id, store=store)
    there = {(file.name, part.number, part.sha256) for file in resumed.files for part in file.arrived}
    assert there == {
        ("config.json", 1, hashlib.sha256(FILES["config.json"]).hexdigest()),
        ("model.safetensors", 2, hashlib.sha256(part_of(WEIGHTS, 2)).hexdigest()),
    }
    with pytest.raises(PartsMissing, match=r"model\.safetensors lacks parts 1, 3") as refusal:
        uploads.complete_upload(actor=bob, version_id=upload.version.id, store=store)
    assert refusal.value.fields == {"model.safetensors": "parts 1, 3"}
    assert state_of(upload.version.id) == "uploading"
    send_parts(bob, store, upload, only=[("model.safetensors", 1), ("model.safetensors", 3)])
    assert uploads.complete_upload(actor=bob, version_id=upload.version.id, store=store).state == "validating"


def test_a_part_that_is_announced_with_other_bytes_must_be_sent_again(bob, store):
    upload = begin(bob, store)
    send_parts(bob, store, upload)
    other = os.urandom(PART_BYTES)
    target = announce(bob, store, upload, "model.safetensors", 1, other)
    with pytest.raises(PartsMissing, match="lacks part 1"):
        uploads.complete_upload(actor=bob, version_id=upload.version.id, store=store)
    send(target, other, store)
    assert uploads.complete_upload(actor=bob, version_id=upload.version.id, store=store).state == "validating"


def test_a_part_announced_anew_while_the_store_is_asked_is_not_lost(bob, store, monkeypatch):
    upload = begin(bob, store)
    send_parts(bob, store, upload)
    asked = store.arrived

    def arrived_and_then_changed(multipart: str) -> object:
        found = asked(multipart)
        announce(bob, store, upload, "model.safetensors", 1, os.urandom(PART_BYTES))
        return found

    monkeypatch.setattr(store, "arrived", arrived_and_then_changed)
    with pytest.raises(Conflict, match="announced anew"):
        uploads.complete_upload(actor=bob, version_id=upload.version.id, store=store)
    assert state_of(upload.version.id) == "uploading"


def test_numbers_count_on_past_uploads_that_came_to_nothing(bob, store):
    first = begin(bob, store)
    uploads.abort_upload(actor=bob, version_id=first.version.id, store=store)
    assert begin(bob, store).version.number == 2
    assert begin(bob, store, model=first.version.model_id).version.number == 3
    with acting_as(PLATFORM):
        assert Model.objects.count() == 1


def test_a_version_remembers_what_it_was_made_from(bob, personas, store):
    parent, foreign = make_version(personas.acme), make_version(personas.evil)
    upload = uploads.begin_upload(
        actor=bob, model="tiny", files=plans(), store=store, derived_from=parent.id, derivation="int8 weights"
    )
    assert (upload.version.derived_from_id, upload.version.derivation) == (parent.id, "int8 weights")
    with pytest.raises(NotFound, match="derive"):
        uploads.begin_upload(actor=bob, model="tiny", files=plans(), store=store, derived_from=foreign.id)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[S3Store]:
    with running_object_store(tmp_path / "buckets") as server:
        yield S3Store(bucket=BUCKET, prefix="pagoda", endpoint=server.endpoint)


def test_the_same_calls_upload_to_a_bucket(bob, bucket):
    upload = begin(bob, bucket)
    send_parts(bob, bucket, upload, only=[("config.json", 1), ("model.safetensors", 2)])
    resumed = uploads.get_upload(actor=bob, version_id=upload.version.id, store=bucket)
    assert [[part.number for part in file.arrived] for file in resumed.files] == [[1], [2]]
    with pytest.raises(PartsMissing, match="parts 1, 3"):
        uploads.complete_upload(actor=bob, version_id=upload.version.id, store=bucket)
    send_parts(bob, bucket, upload, only=[("model.safetensors", 1), ("model.safetensors", 3)])
    assert uploads.complete_upload(actor=bob, version_id=upload.version.id, store=bucket).state == "validating"
    given_up = begin(bob, bucket)
    send_parts(bob, bucket, given_up)
    uploads.abort_upload(actor=bob, version_id=given_up.version.id, store=bucket)
    assert {stores.key_of(item).partition("/")[0] for item in bucket.uploads()} == {upload.version.id}


# --- ends


def test_an_aborted_upload_leaves_no_byte_and_says_who_ended_it(bob, store):
    upload = begin(bob, store)
    send_parts(bob, store, upload)
    uploads.abort_upload(actor=bob, version_id=upload.version.id, store=store)
    assert files_of(store) == []
    with acting_as(PLATFORM):
        version = ModelVersion.objects.get()
        check = VersionCheck.objects.get()
        assert not UploadPart.objects.exists()
    assert (version.state, version.expires_at) == ("rejected", None)
    assert (check.state, check.reason) == ("failed", "The upload was aborted by bob@acme.example.")


def test_what_has_ended_takes_nothing_more(bob, store):
    done, given_up = upload_all(bob, store), begin(bob, store)
    uploads.abort_upload(actor=bob, version_id=given_up.version.id, store=store)
    for version_id in (done.id, given_up.version.id):
        with pytest.raises(Conflict, match="has ended"):
            uploads.abort_upload(actor=bob, version_id=version_id, store=store)
        with pytest.raises(Conflict, match="has ended"):
            uploads.complete_upload(actor=bob, version_id=version_id, store=store)
        with pytest.raises(Conflict, match="has ended"):
            uploads.announce_part(
                actor=bob, version_id=version_id, file="config.json", number=1, size_bytes=8, sha256="0" * 64,
                store=store,
            )  # fmt: skip


def test_a_store_that_is_full_ends_the_upload_before_it_began(bob, store, monkeypatch):
    def full(_key: str) -> str:
        raise StoreFull("no room is left under /srv/our/folder")

    monkeypatch.setattr(store, "begin", full)
    with pytest.raises(Unavailable, match="no room") as error:
        begin(bob, store)
    assert error.value.code == "store_full"
    with acting_as(PLATFORM):
        version = ModelVersion.objects.get()
        told = [error.value.message, version.checks.get().reason]
    assert version.state == "rejected"
    assert all("no room" in words and "/srv" not in words for words in told), "what our disks are called stays with us"
    assert storage.get_storage(actor=bob).stored_bytes == 0


# --- who may


def test_strangers_find_nothing_and_viewers_only_look(personas, bob, store):
    upload = begin(bob, store)
    mallory, carol = member_actor(personas.mallory, "evil"), member_actor(personas.carol, "acme")
    version_id = upload.version.id
    for call in (uploads.get_upload, uploads.complete_upload, uploads.abort_upload):
        with pytest.raises(NotFound):
            call(actor=mallory, version_id=version_id, store=store)
    with pytest.raises(NotFound):
        announce(mallory, store, upload, "config.json", 1, FILES["config.json"])
    assert uploads.get_upload(actor=carol, version_id=version_id, store=store).files
    for call in (uploads.complete_upload, uploads.abort_upload):
        with pytest.raises(Forbidden):
            call(actor=carol, version_id=version_id, store=store)
    with pytest.raises(Forbidden):
        begin(carol, store)
    with pytest.raises(NotFound):
        begin(mallory, store, model=upload.version.model_id)


def test_two_tenants_have_models_of_one_name(personas, bob, store):
    one, two = begin(bob, store), begin(member_actor(personas.mallory, "evil"), store)
    assert one.version.model_id != two.version.model_id
    assert two.version.number == 1


def test_a_version_that_was_never_uploaded_is_no_upload(bob, personas, store):
    with pytest.raises(NotFound, match="no such upload"):
        uploads.get_upload(actor=bob, version_id=make_version(personas.acme).id, store=store)


# --- what is refused


@pytest.mark.parametrize("model", ["", "x", "Upper", "a b", "../up", "a" * 65, "mdl"[:1]])
def test_a_name_that_no_model_can_have_is_refused(bob, store, model):
    with pytest.raises(Invalid, match="cannot be the name"):
        begin(bob, store, model=model)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"file": "other.bin"}, "file"),
        ({"number": 0}, "number"),
        ({"number": 4}, "number"),
        ({"size_bytes": 999}, "size_bytes"),
        ({"number": 3}, "size_bytes"),
        ({"sha256": "0" * 63}, "sha256"),
        ({"sha256": "G" * 64}, "sha256"),
    ],
)
def test_a_part_that_the_file_does_not_have_is_refused_by_field(bob, store, change, field):
    upload = begin(bob, store)
    part = {"file": "model.safetensors", "number": 1, "size_bytes": 1000, "sha256": "0" * 64} | change
    with pytest.raises(Invalid) as refusal:
        uploads.announce_part(actor=bob, version_id=upload.version.id, store=store, **part)
    assert set(refusal.value.fields) == {field}


# --- limits


def limit(personas, **limits: int) -> None:
    set_tenant_storage(actor=PLATFORM, tenant_id=personas.acme.id, limits=StorageLimits(**limits))


def test_a_limit_of_bytes_counts_what_is_kept_and_what_is_announced(bob, personas, store):
    make_version(personas.acme)  # 401,000 bytes
    limit(personas, stored_bytes=401_000 + 3_000)
    begin(bob, store, {"config.json": b"x" * 2_000})
    with pytest.raises(Conflict, match=r"adds 1,001 to 403,000 bytes kept, and 404,000 are allowed") as refusal:
        begin(bob, store, {"config.json": b"x" * 1_001})
    assert refusal.value.code == "storage_limit"
    begin(bob, store, {"config.json": b"x" * 1_000})
    with acting_as(PLATFORM):
        assert ModelVersion.objects.count() == 3


def test_limits_of_files_and_of_open_uploads(bob, personas, store):
    limit(personas, stored_files=3)
    begin(bob, store)
    with pytest.raises(Conflict, match="adds 2 to 2 files kept"):
        begin(bob, store)
    limit(personas, open_uploads=1)
    with pytest.raises(Conflict, match="adds 1 to 1 uploads at a time"):
        begin(bob, store)


def test_what_ends_makes_room(bob, personas, store):
    limit(personas, open_uploads=1, stored_bytes=3_000)
    uploads.abort_upload(actor=bob, version_id=begin(bob, store).version.id, store=store)
    upload_all(bob, store)
    with pytest.raises(Conflict, match="bytes kept"):  # being validated, it takes its room all the same
        begin(bob, store)


def test_what_is_being_validated_is_an_open_upload_until_it_ends(bob, personas, store):
    limit(personas, open_uploads=1)
    version = upload_all(bob, store)
    with pytest.raises(Conflict, match="adds 1 to 1 uploads at a time"):
        begin(bob, store)
    delete_version(actor=bob, version_id=version.id)
    begin(bob, store)


def test_what_is_kept_is_told_with_its_limits(bob, personas, store):
    begin(bob, store)
    kept = storage.get_storage(actor=bob)
    assert (kept.stored_bytes, kept.stored_files, kept.open_uploads) == (2_568, 2, 1)
    assert kept.limits == DEFAULT_STORAGE
    limit(personas, stored_files=7)
    kept = storage.get_storage(actor=bob)
    assert kept.limits == StorageLimits(
        stored_bytes=DEFAULT_STORAGE.stored_bytes, stored_files=7, open_uploads=DEFAULT_STORAGE.open_uploads
    )
    assert storage.get_storage(actor=member_actor(personas.mallory, "evil")).stored_bytes == 0


@pytest.mark.parametrize("limits", [{"stored_bytes": 0}, {"open_uploads": 2**31}, {"stored_files": True}])
def test_a_limit_that_is_none_is_refused(personas, limits):
    with pytest.raises(Invalid):
        limit(personas, **limits)


# --- the sweep


def test_an_upload_of_which_nothing_is_heard_is_given_up(bob, store, run_sweep):
    lost, living, done = begin(bob, store), begin(bob, store), upload_all(bob, store)
    send_parts(bob, store, lost)
    with acting_as(PLATFORM):
        ModelVersion.objects.filter(pk=lost.version.pk).update(expires_at=timezone.now())
    run_sweep()
    states = [state_of(version_id) for version_id in (lost.version.id, living.version.id, done.id)]
    assert states == ["rejected", "uploading", "validating"]
    with acting_as(PLATFORM):
        check = VersionCheck.objects.get(version=lost.version)
    assert check.reason == "Nothing was heard of the upload for 24 hours."
    assert {stores.key_of(item).partition("/")[0] for item in store.uploads()} == {living.version.id, done.id}


def test_announcing_a_part_keeps_an_upload_alive(bob, store, run_sweep):
    upload = begin(bob, store)
    soon = timezone.now() + timedelta(minutes=1)
    with acting_as(PLATFORM):
        ModelVersion.objects.update(expires_at=soon)
    announce(bob, store, upload, "config.json", 1, FILES["config.json"])
    with acting_as(PLATFORM):
        assert ModelVersion.objects.get().expires_at > soon + timedelta(hours=23)


def test_what_an_abort_could_not_remove_is_swept(bob, store, run_sweep, monkeypatch):
    upload = begin(bob, store)
    send_parts(bob, store, upload)
    with monkeypatch.context() as broken:
        broken.setattr(store, "discard", lambda _upload: (_ for _ in ()).throw(OSError("the disk is away")))
        uploads.abort_upload(actor=bob, version_id=upload.version.id, store=store)
    assert len(files_of(store)) == 4
    run_sweep()
    assert files_of(store) == []


@pytest.fixture
def run_sweep(store: LocalStore):
    """Run the periodic job as a worker does."""
    from controlplane.jobs import services as jobs
    from controlplane.jobs.lease import JobState
    from controlplane.jobs.run import run_job

    def run() -> None:
        with acting_as(PLATFORM):
            job = Job(kind="registry.sweep_uploads", key=str(timezone.now()), state=JobState.QUEUED.value,
                      run_at=jobs._database_now(), periodic=True)  # fmt: skip
            job.save(force_insert=True)
        assert run_job(job.id) is JobState.DONE

    return run


# --- the database itself


def test_a_version_can_be_filled_in_but_not_become_another(bob, store):
    upload = begin(bob, store)
    with acting_as(PLATFORM):
        ModelVersion.objects.update(digest="0" * 64, context_tokens=512)
    for change in ({"number": 9}, {"created_by": "mallory"}):
        with pytest.raises(Exception, match="immutable"), acting_as(PLATFORM):
            ModelVersion.objects.filter(pk=upload.version.pk).update(**change)


def test_no_version_is_ready_without_its_content(bob, store):
    begin(bob, store)
    with pytest.raises(Exception, match="version_whole"), acting_as(PLATFORM):
        ModelVersion.objects.update(state="ready", expires_at=None)


def test_a_part_belongs_to_its_files_tenant(bob, personas, store):
    begin(bob, store)
    with acting_as(PLATFORM):
        file = UploadFile.objects.first()
        UploadPart.objects.create(tenant=personas.evil, file=file, number=1, size_bytes=1, sha256="0" * 64)
        with pytest.raises(IntegrityError, match="same_tenant"), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        UploadPart.objects.all().delete()


def test_begin_asks_few_questions(bob, store, django_assert_max_num_queries):
    files = [FilePlan(f"model-{number:05d}.safetensors", 10) for number in range(100)]
    with django_assert_max_num_queries(40):
        uploads.begin_upload(actor=bob, model="tiny", files=files, store=store)
