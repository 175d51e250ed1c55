"""Many people at once, on real PostgreSQL: one winner, and promises that fit."""

import random
from collections import Counter
from functools import partial

import pytest
from domain import PLATFORM, deploy, make_version
from racing import MANY, at_once

from controlplane.deployments import catalog, services
from controlplane.deployments.models import Deployment
from controlplane.deployments.services import Changes, ServingLimitReached
from controlplane.registry.lifecycle import delete_version
from controlplane.registry.models import ModelVersion
from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Share
from tenants.actor import acting_as, system_actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.models import AuditEvent


def outcomes(results: list[object]) -> Counter[str]:
    return Counter(type(result).__name__ for result in results)


def verbs() -> Counter[str]:
    with acting_as(PLATFORM):
        return Counter(AuditEvent.objects.values_list("verb", flat=True))


def test_of_two_guarantees_that_do_not_fit_together_one_is_refused(committed, personas):
    for number in range(5):
        deployment = deploy(personas.acme, name=f"chat{number}", min_replicas=0)

        def guarantee(slug: str, deployment: Deployment = deployment) -> object:
            return services.set_grant(
                actor=PLATFORM, deployment_id=deployment.id, grantee_slug=slug, share=Share(guarantee_tokens=1500)
            )

        results = at_once(lambda: guarantee("acme"), lambda: guarantee("evil"))
        assert sorted(isinstance(result, Invalid) for result in results) == [False, True]
        with acting_as(PLATFORM):
            promised = [grant.guarantee_tokens for grant in deployment.grants.all()]
        assert promised.count(1500) == 1
        assert sum(promised) <= 2048  # the pool of the tiny model; the owner starts with a part of it


def test_of_rotations_and_new_shares_at_once_each_rotation_counts(committed, personas):
    deployment = deploy(personas.acme, min_replicas=0)
    where = {"actor": PLATFORM, "deployment_id": deployment.id, "grantee_slug": "acme"}
    rotations = [partial(services.rotate_cache, **where)] * 8
    changes = [partial(services.set_grant, **where, share=Share(weight=weight)) for weight in range(1, 9)]
    results = at_once(*[call for pair in zip(rotations, changes, strict=True) for call in pair])
    assert outcomes(results) == {"Grant": 16}
    with acting_as(PLATFORM):
        assert deployment.grants.get().cache_epoch == 8


@pytest.mark.parametrize("many", MANY)
def test_of_many_deployments_of_one_name_one_is_made(committed, personas, many):
    version = make_version(personas.acme)
    results = at_once(*[lambda: deploy(personas.acme, version=version)] * many)
    assert outcomes(results) == {"Deployment": 1, "Conflict": many - 1}
    with acting_as(PLATFORM):
        assert Deployment.objects.count() == 1


@pytest.mark.parametrize("many", MANY)
def test_deployments_made_changed_and_resumed_at_once_count_each_others_replicas(committed, personas, many):
    changed, resumed = (
        deploy(personas.acme, name=name, min_replicas=least, max_replicas=2)
        for name, least in (("changed", 0), ("resumed", 1))
    )
    services.pause_deployment(actor=PLATFORM, deployment_id=resumed.id)
    version = make_version(personas.acme)
    makes = [
        partial(deploy, personas.acme, f"chat{number}", version, min_replicas=2, max_replicas=2)
        for number in range(many)
    ]
    results = at_once(
        partial(
            services.configure_deployment,
            actor=PLATFORM, deployment_id=changed.id, revision=1, changes=Changes(min_replicas=2),
        ),
        partial(services.resume_deployment, actor=PLATFORM, deployment_id=resumed.id),
        *makes,
    )  # fmt: skip
    assert all(isinstance(result, Deployment | ServingLimitReached) for result in results)
    with acting_as(PLATFORM):
        active = list(Deployment.objects.filter(state="active"))
    kept = sum(deployment.min_replicas for deployment in active)
    assert kept in (3, 4), "one more of two replicas would have had room, or one was let in too many"


@pytest.mark.parametrize("many", MANY)
def test_of_many_changes_of_what_all_have_read_one_is_made(committed, personas, many):
    chat = deploy(personas.acme)

    def configure(size_mb: int) -> object:
        return services.configure_deployment(
            actor=PLATFORM, deployment_id=chat.id, revision=1, changes=Changes(kv_memory_mb=size_mb)
        )

    results = at_once(*[lambda size_mb=size_mb: configure(size_mb) for size_mb in range(2, many + 2)])
    assert outcomes(results) == {"Deployment": 1, "Conflict": many - 1}
    (winner,) = [result for result in results if isinstance(result, Deployment)]
    with acting_as(PLATFORM):
        stored = Deployment.objects.get(pk=chat.id)
    assert (stored.kv_memory_mb, stored.revision) == (winner.kv_memory_mb, 2)
    assert verbs() == {"deployment.create": 1, "deployment.configure": 1}


@pytest.mark.parametrize("many", MANY)
def test_of_many_who_end_a_deployment_one_does_and_no_change_comes_after(committed, personas, many):
    chat = deploy(personas.acme)

    def configure() -> object:
        return services.configure_deployment(
            actor=PLATFORM, deployment_id=chat.id, revision=1, changes=Changes(max_num_seqs=4)
        )

    def end() -> object:
        return services.delete_deployment(actor=PLATFORM, deployment_id=chat.id)

    calls = [configure, end] * (many // 2)
    random.shuffle(calls)
    results = at_once(*calls)
    ends = [result for call, result in zip(calls, results, strict=True) if call is end]
    changes = [result for call, result in zip(calls, results, strict=True) if call is configure]
    assert outcomes(ends) == {"Deployment": 1, "NotFound": many // 2 - 1}
    made = sum(isinstance(result, Deployment) for result in changes)
    assert made <= 1
    assert all(isinstance(result, Deployment | Conflict | NotFound) for result in changes)
    with acting_as(PLATFORM):
        stored = Deployment.objects.get(pk=chat.id)
        story = list(AuditEvent.objects.order_by("sequence").values_list("verb", flat=True))
    assert (stored.state, stored.revision) == ("deleted", 1 + made)
    assert story == ["deployment.create", *["deployment.configure"] * made, "deployment.delete"]


@pytest.mark.parametrize("many", MANY)
def test_a_version_is_deployed_or_deleted_and_never_both(committed, personas, many):
    acme = system_actor("tests", personas.acme)
    for round_ in range(3):
        version = make_version(personas.acme)
        names = [f"chat-{round_}-{number}" for number in range(many // 2)]
        calls = [
            *[partial(deploy, personas.acme, name=name, version=version) for name in names],
            *[partial(delete_version, actor=acme, version_id=version.id)] * (many // 2),
        ]
        random.shuffle(calls)
        seen = outcomes(at_once(*calls))
        if seen["ModelVersion"]:
            assert seen == {"ModelVersion": 1, "NotFound": many - 1}
        else:
            assert seen == {"Deployment": many // 2, "InUse": many // 2}
        served = contract.decode(catalog.latest(actor=PLATFORM) or b"").versions
        with acting_as(PLATFORM):
            is_deleted = ModelVersion.objects.get(pk=version.id).deleted_at is not None
        assert is_deleted == (version.id not in served)


def test_a_pause_and_an_end_at_once_leave_one_story(committed, personas):
    for number in range(5):
        deployment = deploy(personas.acme, name=f"chat{number}")
        pause, end = at_once(
            lambda: services.pause_deployment(actor=PLATFORM, deployment_id=deployment.id),  # noqa: B023
            lambda: services.delete_deployment(actor=PLATFORM, deployment_id=deployment.id),  # noqa: B023
        )
        assert isinstance(end, Deployment)
        assert isinstance(pause, Deployment | NotFound)
        with acting_as(PLATFORM):
            assert Deployment.objects.get(pk=deployment.pk).state == "deleted"
