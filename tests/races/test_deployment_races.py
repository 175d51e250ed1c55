"""Two people at once, on real PostgreSQL: one winner, and promises that fit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import connection
from domain import PLATFORM, deploy, make_version

from controlplane.deployments import services
from controlplane.deployments.models import Deployment
from dataplane.contracts.catalog import Share
from tenants.actor import acting_as
from tenants.errors import Conflict, Invalid, NotFound


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Run ``calls`` in threads that start together; return what they returned, or the error they ended with."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        try:
            barrier.wait(timeout=10)
            return call()
        except (Conflict, Invalid, NotFound) as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_of_two_guarantees_that_do_not_fit_together_one_is_refused(committed, personas):
    for number in range(5):
        deployment = deploy(personas.acme, name=f"chat{number}")

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


def test_of_two_deployments_of_one_name_one_is_made(committed, personas):
    version = make_version(personas.acme)
    results = at_once(*[lambda: deploy(personas.acme, version=version)] * 4)
    assert sum(isinstance(result, Conflict) for result in results) == 3
    with acting_as(PLATFORM):
        assert Deployment.objects.count() == 1


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
