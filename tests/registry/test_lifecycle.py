"""What becomes of versions: archived, deleted, named; and what the states allow, whoever comes in which order."""

import shutil
from contextlib import suppress

import pytest
from django.db import ProgrammingError
from django_fixtures import undone
from domain import allow_many, deploy, make_version
from hypothesis import given, settings
from hypothesis import strategies as st
from small_versions import PLATFORM, ready
from validation_world import blobs_in, collect, grow_old

from controlplane.deployments import services as deployments
from controlplane.deployments.models import DeploymentArm, DeploymentState
from controlplane.registry import lifecycle, selectors
from controlplane.registry.models import (
    TRANSITIONS,
    WHOLE,
    Artifact,
    Model,
    ModelAlias,
    ModelVersion,
    VersionFile,
    VersionState,
)
from tenants.actor import acting_as, member_actor, system_actor
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import AuditEvent, OutboxEvent


@pytest.fixture
def bob(personas):
    return member_actor(personas.bob, "acme")


@pytest.fixture
def version(personas):
    return make_version(personas.acme)


def again(version):
    with acting_as(PLATFORM):
        return ModelVersion.objects.get(pk=version.pk)


def test_an_archived_version_is_not_deployed_any_more_and_what_serves_it_goes_on(personas, bob, version):
    deployment = deploy(personas.acme, version=version)
    lifecycle.archive_version(actor=bob, version_id=version.id)
    assert again(version).state == "archived"
    with pytest.raises(Conflict, match="archived"):
        deploy(personas.acme, name="other", version=version)
    with acting_as(PLATFORM):
        assert DeploymentArm.objects.filter(deployment=deployment, version=version).exists()
        event = AuditEvent.objects.get(verb="version.archive")
    assert (event.before, event.after) == ({"state": "ready"}, {"state": "archived"})
    with pytest.raises(Conflict, match="cannot become archived"):
        lifecycle.archive_version(actor=bob, version_id=version.id)


def test_a_version_in_use_is_not_deleted_and_everything_that_uses_it_is_named(personas, bob, version):
    deployment = deploy(personas.acme, name="chat", version=version)
    lifecycle.set_alias(actor=bob, model_id=version.model_id, name="stable", version_id=version.id)
    with pytest.raises(lifecycle.InUse, match="the deployment chat, the alias stable") as refusal:
        lifecycle.delete_version(actor=bob, version_id=version.id)
    assert refusal.value.dependents == ["the deployment chat", "the alias stable"]
    assert again(version).deleted_at is None
    deployments.delete_deployment(actor=system_actor("tests", personas.acme), deployment_id=deployment.id)
    lifecycle.delete_alias(actor=bob, model_id=version.model_id, name="stable")
    lifecycle.delete_version(actor=bob, version_id=version.id)
    assert again(version).deleted_at is not None


def test_a_deleted_version_is_a_tombstone(personas, bob, version):
    lifecycle.delete_version(actor=bob, version_id=version.id)
    for act in (
        lambda: lifecycle.delete_version(actor=bob, version_id=version.id),
        lambda: lifecycle.archive_version(actor=bob, version_id=version.id),
        lambda: lifecycle.set_alias(actor=bob, model_id=version.model_id, name="x", version_id=version.id),
        lambda: deploy(personas.acme, version=version),
    ):
        with pytest.raises(NotFound):
            act()
    assert selectors.list_versions(actor=bob) == []
    assert selectors.get_version(actor=bob, version_id=version.id).deleted_at is not None


@pytest.mark.parametrize(
    ("state", "left"),
    [("validating", "rejected"), ("ready", "ready"), ("rejected", "rejected"), ("archived", "archived")],
)
def test_any_version_that_is_there_can_be_deleted(personas, bob, state, left):
    version = make_version(personas.acme, state=VersionState(state))
    lifecycle.delete_version(actor=bob, version_id=version.id)
    assert (again(version).state, again(version).deleted_at is not None) == (left, True)


def test_an_upload_is_aborted_not_deleted(personas, bob):
    from django.utils import timezone

    with acting_as(PLATFORM):
        model = Model.objects.create(tenant=personas.acme, name="coming")
        version = ModelVersion.objects.create(
            tenant=personas.acme, model=model, number=1, state="uploading", expires_at=timezone.now(), source="",
            created_by="",
        )  # fmt: skip
    with pytest.raises(Conflict, match="Abort the upload"):
        lifecycle.delete_version(actor=bob, version_id=version.id)


def test_an_alias_moves_and_each_move_is_on_record(personas, bob):
    one, two = make_version(personas.acme), make_version(personas.acme)
    for version in (one, one, two):
        lifecycle.set_alias(actor=bob, model_id=one.model_id, name="stable", version_id=version.id)
    (alias,) = selectors.list_aliases(actor=bob, model_id=one.model_id)
    assert (alias.name, alias.version.number) == ("stable", two.number)
    with acting_as(PLATFORM):
        moves = list(AuditEvent.objects.filter(verb="alias.set").order_by("sequence").values_list("before", "after"))
        assert OutboxEvent.objects.filter(topic="version").count() == 2
    assert moves == [
        ({}, {"model": "tiny", "version": one.number}),
        ({"version": one.number}, {"model": "tiny", "version": two.number}),
    ]
    lifecycle.delete_alias(actor=bob, model_id=one.model_id, name="stable")
    with pytest.raises(NotFound, match="no alias stable"):
        lifecycle.delete_alias(actor=bob, model_id=one.model_id, name="stable")


@pytest.mark.parametrize("name", ["", "7", "-x", "Stable", "a b", "a" * 33, "stable\n", "é"])
def test_a_name_that_is_no_alias_is_refused(bob, version, name):
    with pytest.raises(Invalid):
        lifecycle.set_alias(actor=bob, model_id=version.model_id, name=name, version_id=version.id)


def test_a_model_has_so_many_aliases_and_no_more(bob, version, monkeypatch):
    monkeypatch.setattr(lifecycle, "MAX_ALIASES", 2)
    for name in ("one", "two", "one"):
        lifecycle.set_alias(actor=bob, model_id=version.model_id, name=name, version_id=version.id)
    with pytest.raises(Conflict, match="has 2 aliases"):
        lifecycle.set_alias(actor=bob, model_id=version.model_id, name="three", version_id=version.id)
    lifecycle.delete_alias(actor=bob, model_id=version.model_id, name="one")
    lifecycle.set_alias(actor=bob, model_id=version.model_id, name="three", version_id=version.id)


def test_an_alias_names_a_ready_version_of_its_own_model(personas, bob, version):
    other = make_version(personas.acme, name="other")
    rejected = make_version(personas.acme, state=VersionState.REJECTED)
    with pytest.raises(NotFound):
        lifecycle.set_alias(actor=bob, model_id=version.model_id, name="x", version_id=other.id)
    with pytest.raises(Conflict, match="rejected"):
        lifecycle.set_alias(actor=bob, model_id=version.model_id, name="x", version_id=rejected.id)


def test_viewers_change_nothing_and_strangers_see_nothing(personas, version):
    carol, mallory = member_actor(personas.carol, "acme"), member_actor(personas.mallory, "evil")
    for actor, error in ((carol, Forbidden), (mallory, NotFound)):
        with pytest.raises(error):
            lifecycle.archive_version(actor=actor, version_id=version.id)
        with pytest.raises(error):
            lifecycle.delete_version(actor=actor, version_id=version.id)
        with pytest.raises(error):
            lifecycle.set_alias(actor=actor, model_id=version.model_id, name="x", version_id=version.id)
        with pytest.raises(error):
            lifecycle.delete_alias(actor=actor, model_id=version.model_id, name="x")
    with pytest.raises(NotFound):
        selectors.get_version_detail(actor=mallory, version_id=version.id)


def test_the_database_itself_keeps_what_a_version_holds_and_lets_it_be_filled_in_before(committed, personas):
    version, coming = make_version(personas.acme), make_version(personas.acme, state=VersionState.VALIDATING)
    with acting_as(PLATFORM):
        ModelVersion.objects.filter(pk=coming.pk).update(context_tokens=1024, digest="1" * 64)
    for change in ({"digest": "0" * 64}, {"config": {}}, {"card": "<b>"}, {"licence": "mit"}, {"num_parameters": 7}):
        with pytest.raises(ProgrammingError, match="immutable"), acting_as(PLATFORM):
            ModelVersion.objects.filter(pk=version.pk).update(**change)
    with pytest.raises(ProgrammingError, match="immutable"), acting_as(PLATFORM):
        ModelVersion.objects.filter(pk=coming.pk).update(number=99)
    lifecycle.delete_version(actor=system_actor("tests", personas.acme), version_id=version.id)
    with pytest.raises(ProgrammingError, match="is deleted"), acting_as(PLATFORM):
        ModelVersion.objects.filter(pk=version.pk).update(deleted_at=None)


def test_a_version_tells_what_its_page_shows_in_the_same_number_of_queries_whatever_there_is(
    personas, bob, version, django_assert_num_queries
):
    with django_assert_num_queries(11):
        selectors.get_version_detail(actor=bob, version_id=version.id)
    deploy(personas.acme, version=version)
    for name in ("stable", "candidate"):
        lifecycle.set_alias(actor=bob, model_id=version.model_id, name=name, version_id=version.id)
    with django_assert_num_queries(11):
        detail = selectors.get_version_detail(actor=bob, version_id=version.id)
    assert detail.dependents == ("the deployment chat", "the alias candidate", "the alias stable")


def test_two_versions_are_compared_where_both_are_whole(personas, bob, version):
    other = make_version(personas.acme, name="other")
    found = selectors.compare_versions(actor=bob, old_id=version.id, new_id=other.id)
    assert found.config == ()
    assert {file.change for file in found.files} == {"changed"}
    rejected = make_version(personas.acme, state=VersionState.REJECTED)
    with pytest.raises(Conflict, match="only whole ones"):
        selectors.compare_versions(actor=bob, old_id=rejected.id, new_id=other.id)


# --- any order of anything

ACTS = ("make", "make twin", "archive", "delete", "name", "unname", "deploy", "undeploy", "collect")
steps = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 3)), max_size=10)


class _World:
    """Does what it is told to the versions there are, and knows what every one of them may have become."""

    def __init__(self, tenant, store):
        self.tenant, self.store = tenant, store
        allow_many(tenant)
        self.actor = system_actor("tests", tenant)
        self.versions, self.states, self.made = [], {}, 0

    def act(self, verb: str, which: int) -> None:
        if verb == "collect":
            grow_old()
            collect()
        elif verb.startswith("make"):
            self.made += verb == "make"
            self.versions.append(ready(self.tenant, {"shared": "s", "own": f"{self.made}"}, self.store,
                                       name=f"model{len(self.versions)}"))  # fmt: skip
        elif self.versions:
            with suppress(Conflict, NotFound):
                self.change(verb, self.versions[which % len(self.versions)])

    def change(self, verb: str, version: ModelVersion) -> None:
        if verb == "archive":
            lifecycle.archive_version(actor=self.actor, version_id=version.id)
        elif verb == "delete":
            lifecycle.delete_version(actor=self.actor, version_id=version.id)
        elif verb == "name":
            lifecycle.set_alias(actor=self.actor, model_id=version.model_id, name="stable", version_id=version.id)
        elif verb == "unname":
            lifecycle.delete_alias(actor=self.actor, model_id=version.model_id, name="stable")
        elif verb == "deploy":
            deploy(self.tenant, name=f"chat{self.versions.index(version)}", version=version)
        else:
            self.undeploy(version)

    def undeploy(self, version: ModelVersion) -> None:
        with acting_as(PLATFORM):
            arm = DeploymentArm.objects.filter(version=version).exclude(deployment__state="deleted").first()
        if arm is not None:
            deployments.delete_deployment(actor=self.actor, deployment_id=arm.deployment_id)

    def check(self) -> None:
        with acting_as(PLATFORM):
            rows = list(ModelVersion.objects.filter(model__name__startswith="model"))
            served = DeploymentArm.objects.exclude(deployment__state=DeploymentState.DELETED)
            living = [row for row in rows if row.deleted_at is None]
            assert not served.exclude(version__in=living).exists(), "a deleted version is served"
            assert not ModelAlias.objects.exclude(version__in=living).exists(), "an alias names a deleted version"
            needed = VersionFile.objects.filter(version__in=living).values_list("artifact__sha256", flat=True)
            claimed = Artifact.objects.filter(deleted_at=None).values_list("sha256", flat=True)
            there = blobs_in(self.store)
            assert set(needed) <= set(claimed) <= there, "bytes of a living version are missing"
            assert there <= set(claimed), "bytes that nobody claims are in the store"
        for row in rows:
            before = self.states.get(row.id, VersionState.READY)
            new = VersionState(row.state)
            assert new == before or new in TRANSITIONS[before]
            assert new in WHOLE
            self.states[row.id] = new


def test_in_any_order_of_events_what_is_used_stays_and_the_rest_goes(personas, home_store):
    @settings(max_examples=12, deadline=None)
    @given(steps)
    def any_order(steps):
        with undone():
            world = _World(personas.acme, home_store)
            for step in steps:
                world.act(*step)
                world.check()
        shutil.rmtree(home_store.root, ignore_errors=True)

    any_order()
