"""Versions finished, deleted, deployed, named and collected at once, on real PostgreSQL: one story each time."""

import random
from functools import partial

import msgspec
import pytest
import racing
from domain import CONFIG, allow_many, deploy, sha256
from small_versions import PLATFORM, files_of, ready
from validation_world import blobs_in, grow_old, validate

from controlplane.deployments.models import Deployment, DeploymentArm
from controlplane.registry import blobs, gc, lifecycle
from controlplane.registry.models import HOLDING, Artifact, Model, ModelVersion, VersionFile
from controlplane.registry.stores.local import LocalStore
from controlplane.registry.validation import steps
from controlplane.registry.validation.job import order_validation
from dataplane.contracts.verdict import version_digest
from tenants.actor import acting_as, system_actor
from tenants.errors import Conflict, NotFound
from tenants.models import AuditEvent, Tenant

ROUNDS = 20
at_once = partial(racing.at_once, refusals=(Conflict, NotFound))


@pytest.fixture
def store(tmp_path, settings) -> LocalStore:
    settings.PAGODA_HOME = tmp_path
    settings.PAGODA_STORE_URL = ""
    return LocalStore(tmp_path / "store")


def almost_ready(tenant: Tenant, number: int, store: LocalStore) -> ModelVersion:
    """Make a version of which only the last step of its validation is left."""
    texts = {"config.json": "shared", "model.safetensors": f"own {number}"}
    donor = ready(tenant, texts, store, name="donor")
    with acting_as(PLATFORM):
        model, _ = Model.objects.get_or_create(tenant=tenant, name="racing")
        version = ModelVersion.objects.create(
            tenant=tenant, model=model, number=number, digest=version_digest(files_of(texts)), state="validating",
            config=msgspec.to_builtins(CONFIG), context_tokens=512, num_parameters=1, weight_bytes=1, size_bytes=99,
            has_chat_template=True, source="", created_by="tests",
        )  # fmt: skip
        blobs.refer(version=version, files=files_of(texts), store=store)
        order_validation(version)
        for line in steps.INSPECTED:
            version.checks.filter(name=line.name).update(state="passed")
        version.checks.filter(name__in=("files", "memory", "smoke")).update(state="passed")
    lifecycle.delete_version(actor=system_actor("tests", tenant), version_id=donor.id)
    return version


def races(tenant: Tenant, store: LocalStore, rounds: int) -> None:
    """Let versions be made ready, deleted and deployed at once, and look at what is left each time."""
    actor = system_actor("tests", tenant)
    allow_many(tenant)
    for number in range(1, rounds + 1):
        version = almost_ready(tenant, number, store)
        if number % 2:
            validate(version)  # else a deployment would always come too early
        calls = [
            lambda: validate(version),  # noqa: B023
            lambda: lifecycle.delete_version(actor=actor, version_id=version.id),  # noqa: B023
            lambda: deploy(tenant, name=f"chat{number}", version=version),  # noqa: B023
        ]
        order = random.sample(range(3), 3)
        results = dict(zip(order, at_once(*(calls[index] for index in order)), strict=True))
        check_story(version, deleted=results[1], deployed=results[2])
    grow_old()
    for artifact in artifacts():
        gc.end_if_unreferenced(actor=PLATFORM, artifact_id=artifact.pk, sha256=artifact.sha256, store=store)
    check_blobs(store)


def check_story(version: ModelVersion, *, deleted: object, deployed: object) -> None:
    with acting_as(PLATFORM):
        row = ModelVersion.objects.get(pk=version.pk)
        served = DeploymentArm.objects.filter(version=version).exists()
        verbs = list(
            AuditEvent.objects.filter(target_id=version.pk).order_by("sequence").values_list("verb", flat=True)
        )
    assert served == isinstance(deployed, Deployment)
    if isinstance(deleted, ModelVersion):
        assert row.deleted_at is not None
        assert not served, "what was deleted is served"
        assert verbs in (["version.delete"], ["version.ready", "version.delete"])
    else:
        assert isinstance(deleted, lifecycle.InUse), "a version that nothing used could not be deleted"
        assert served
        assert (row.state, row.deleted_at, verbs) == ("ready", None, ["version.ready"])


def artifacts() -> list[Artifact]:
    with acting_as(PLATFORM):
        return list(Artifact.objects.order_by("pk"))


def check_blobs(store: LocalStore) -> None:
    with acting_as(PLATFORM):
        living = ModelVersion.objects.filter(deleted_at=None, state__in=HOLDING)
        needed = set(VersionFile.objects.filter(version__in=living).values_list("artifact__sha256", flat=True))
        claimed = set(Artifact.objects.filter(deleted_at=None).values_list("sha256", flat=True))
    assert needed == claimed == blobs_in(store), "bytes are missing, or left behind"


def test_finished_deleted_and_deployed_at_once_a_version_has_one_story(committed, personas, store):
    races(personas.acme, store, ROUNDS)


@pytest.mark.slow
def test_finished_deleted_and_deployed_at_once_two_hundred_versions_have_one_story_each(committed, personas, store):
    races(personas.acme, store, 200)


def test_a_blob_that_is_collected_while_it_is_brought_again_is_there_in_the_end(committed, personas, store):
    texts = {"config.json": "shared", "model.safetensors": "weights"}
    actor = system_actor("tests", personas.acme)

    def bring_and_delete(tenant: Tenant, rounds: int) -> ModelVersion:
        for _ in range(rounds):
            version = ready(tenant, texts, store)
            lifecycle.delete_version(actor=system_actor("tests", tenant), version_id=version.id)
        return ready(tenant, texts, store)

    def collect_often() -> int:
        ended = 0
        for _ in range(20):
            for artifact in artifacts():
                ended += gc.end_if_unreferenced(
                    actor=PLATFORM, artifact_id=artifact.pk, sha256=artifact.sha256, store=store
                )
        return ended

    *versions, ended = at_once(
        lambda: bring_and_delete(personas.acme, 8), lambda: bring_and_delete(personas.evil, 8), collect_often
    )
    assert ended > 0, "the race was not run"
    for version in versions:
        assert isinstance(version, ModelVersion)
    check_blobs(store)
    for text in texts.values():
        store.verify(sha256(text))
    lifecycle.delete_version(actor=actor, version_id=versions[0].id)
    collect_often()
    check_blobs(store)
    assert blobs_in(store), "the other tenant's bytes went"


def test_an_alias_set_while_its_version_is_deleted_names_nothing_or_keeps_it(committed, personas, store):
    actor = system_actor("tests", personas.acme)
    for number in range(6):
        version = ready(personas.acme, {"own": str(number)}, store)
        named, deleted = at_once(
            lambda: lifecycle.set_alias(actor=actor, model_id=version.model_id, name="stable", version_id=version.id),  # noqa: B023
            lambda: lifecycle.delete_version(actor=actor, version_id=version.id),  # noqa: B023
        )
        assert isinstance(named, NotFound) != isinstance(deleted, lifecycle.InUse)


def test_of_two_versions_with_the_same_content_one_becomes_ready(committed, personas, store, settings):
    settings.JOB_CROWDS = {}  # an operator may let a tenant have several validations at once
    for number in range(1, 7, 2):
        one, two = almost_ready(personas.acme, number, store), almost_ready(personas.acme, number + 1, store)
        with acting_as(PLATFORM):
            ModelVersion.objects.filter(pk=two.pk).update(digest=one.digest)
        at_once(lambda: validate(one), lambda: validate(two))  # noqa: B023
        with acting_as(PLATFORM):
            states = sorted(ModelVersion.objects.filter(pk__in=(one.pk, two.pk)).values_list("state", flat=True))
        assert states == ["ready", "rejected"]
