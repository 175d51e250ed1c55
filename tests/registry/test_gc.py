"""What the collector takes, and what it leaves alone."""

import io

import pytest
from domain import sha256
from small_versions import PLATFORM, files_of, ready
from validation_world import blobs_in, collect, grow_old

from controlplane.registry import blobs, lifecycle
from controlplane.registry.models import Artifact, UploadFile
from controlplane.registry.validation import workspace
from tenants.actor import acting_as, system_actor

TEXTS = {"config.json": "c", "model.safetensors": "w"}


def delete(version, tenant):
    lifecycle.delete_version(actor=system_actor("tests", tenant), version_id=version.id)


def test_bytes_go_with_the_last_version_that_has_them_and_not_before(personas, home_store):
    one = ready(personas.acme, TEXTS, home_store, name="one")
    two = ready(personas.acme, TEXTS | {"config.json": "d"}, home_store, name="two")
    grow_old()
    delete(one, personas.acme)
    collect()
    assert blobs_in(home_store) == {sha256("d"), sha256("w")}
    delete(two, personas.acme)
    collect()
    assert blobs_in(home_store) == set()
    again = ready(personas.acme, TEXTS, home_store, name="one")
    grow_old()
    collect()
    assert blobs_in(home_store) == {sha256("c"), sha256("w")}
    with acting_as(PLATFORM):
        assert all(file.artifact.deleted_at is None for file in again.files.select_related("artifact"))


def test_what_was_announced_a_moment_ago_is_left_alone(personas, home_store):
    with acting_as(PLATFORM):
        blobs.announce(tenant_id=personas.acme.id, files=files_of({"a": "x"}))
    home_store.put(io.BytesIO(b"x"), sha256=sha256("x"), size_bytes=1)
    collect()
    assert blobs_in(home_store) == {sha256("x")}
    grow_old()
    collect()
    assert blobs_in(home_store) == set()


def test_a_file_that_was_put_together_for_a_version_on_its_way_is_kept(personas, home_store):
    version = ready(personas.acme, TEXTS, home_store)
    with acting_as(PLATFORM):
        coming = type(version).objects.create(
            tenant=personas.acme, model_id=version.model_id, number=99, state="validating", source="", created_by=""
        )
        blobs.announce(tenant_id=personas.acme.id, files=files_of({"a": "x"}))
        UploadFile.objects.create(
            tenant=personas.acme, version=coming, name="a", size_bytes=1, part_bytes=1, sha256=sha256("x")
        )
    home_store.put(io.BytesIO(b"x"), sha256=sha256("x"), size_bytes=1)
    grow_old()
    collect()
    assert sha256("x") in blobs_in(home_store)


def test_a_worker_that_places_bytes_long_after_its_version_went_leaves_nothing(personas, home_store):
    delete(ready(personas.acme, TEXTS, home_store), personas.acme)
    grow_old()
    collect()
    home_store.put(io.BytesIO(b"w"), sha256=sha256("w"), size_bytes=1)
    collect()
    assert blobs_in(home_store) == set()


def test_a_reference_to_bytes_that_are_gone_is_not_made(personas, home_store):
    version = ready(personas.acme, TEXTS, home_store)
    home_store.delete(sha256("w"))
    with pytest.raises(blobs.BlobsGone, match="not in the store"), acting_as(PLATFORM):
        blobs.refer(version=version, files=files_of(TEXTS), store=home_store)


def test_only_the_folders_of_attempts_that_are_over_are_swept(personas, home_store):
    for name in ("job_1.1", "job_1.2", "job_2.1"):
        (workspace.root() / name).mkdir(parents=True)
    workspace.sweep(lambda job_ids: {("job_1", 2)} if job_ids else set())
    assert [folder.name for folder in workspace.root().iterdir()] == ["job_1.2"]
    with acting_as(PLATFORM):
        assert not Artifact.objects.exists()
