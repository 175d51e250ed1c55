"""A tenant with much to show, and the questions that tests ask of a page."""

import re
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django_fixtures import Personas
from domain import PLATFORM, deploy, make_version
from spool_records import Life

from controlplane.deployments import fleet
from controlplane.metering import services as metering
from dataplane.contracts.generation import EngineLoad, TenantLoad
from dataplane.contracts.ids import Kind, new_id
from dataplane.contracts.replica import FleetReport, ReplicaEvent, ReplicaReport, ReplicaState, ReplicaTable
from dataplane.contracts.usage import Outcome
from tenants.actor import member_actor
from tenants.services import issue_key

LOAD = EngineLoad(
    step=9, num_running=2, num_waiting=1, total_blocks=128, free_blocks=100, cached_blocks=8, owned_blocks=20,
    block_size=16, num_preemptions=3, prefix_cache_queries_tokens=0, prefix_cache_hits_tokens=0, prompt_tokens=0,
    generation_tokens=0,
)  # fmt: skip
FRAME_QUERIES = 5
"""Session, person, place, places, what waits for an approval: what every page of an owner asks."""
PLATFORM_FRAME_QUERIES = 4
"""The same without a place."""
_HOUSEKEEPING = re.compile(r"SAVEPOINT|set_config")


def fill(personas: Personas, num_requests: int = 3, num_replicas: int = 1) -> SimpleNamespace:
    """Give acme a served deployment, a key, and requests of which the last one failed."""
    version = make_version(personas.acme)
    deployment = deploy(personas.acme, version=version)
    key = issue_key(actor=member_actor(personas.bob, "acme"), name="checkout").key
    now_ms = int(time.time() * 1000)
    names = [f"rep_{number}" for number in range(num_replicas)]
    _report(personas, deployment.id, names, now_ms)
    fields = {"deployment_id": deployment.id, "version_id": version.id, "key_id": key.id, "at_ms": now_ms - 1000}
    lives = [late(personas.acme.id, **fields) for _ in range(num_requests)]
    failed = late(personas.acme.id, **fields)
    records = [record for life in lives for record in life.whole(10)]
    metering.ingest(actor=PLATFORM, records=[*records, failed.admit(), *_broken(failed)])
    metering.roll_up(actor=PLATFORM)
    return SimpleNamespace(deployment=deployment, key=key, version=version, request_id=lives[0].request_id)


def late(tenant_id: str, **fields: Any) -> Life:
    """Return the life of a request whose id was minted now."""
    life = Life(tenant_id, **{"at_ms": int(time.time() * 1000)} | fields)
    life.request_id = new_id(Kind.REQUEST)
    return life


def _broken(life: Life) -> list:
    return [life.final(2, Outcome.FAILED, error_code="internal"), life.closed(2, Outcome.FAILED, error_code="internal")]


def _report(personas: Personas, deployment_id: str, names: list[str], at_ms: int) -> None:
    loads = [TenantLoad(personas.acme.id, 4, 128, 1, 20, 8, 2, 1, 3.5)]
    replicas = tuple(
        ReplicaReport(
            replica_id=name, node="n1", state=ReplicaState.READY, cause="a first generation was answered",
            since_ms=at_ms, socket="/run/x", deployment_id=deployment_id, load=LOAD, tenants=loads, kernels="cpu",
        )
        for name in names
    )  # fmt: skip
    events = tuple(
        ReplicaEvent(number, name, at_ms, ReplicaState.WARMING, ReplicaState.READY, "smoke passed", deployment_id)
        for number, name in enumerate(names, start=1)
    )
    table = ReplicaTable(node="n1", number=1, at_ms=at_ms, replicas=replicas)
    fleet.report_replicas(actor=PLATFORM, report=FleetReport(table=table, events=events))


def report_node(replicas: Sequence[Any], number: int = 2, **report: Any) -> None:
    """Have node n1 report ``replicas``, each the fields that matter, and what else a fleet tells."""
    now_ms = int(time.time() * 1000)
    rows = tuple(ReplicaReport(node="n1", since_ms=now_ms, socket="", **vars(each)) for each in replicas)
    table = ReplicaTable(node="n1", number=number, at_ms=now_ms, replicas=rows)
    fleet.report_replicas(actor=PLATFORM, report=FleetReport(table=table, events=(), **report))


def page(client: Client, url: str, status: int = 200, **headers: str) -> str:
    """Return a page's text."""
    answer = client.get(url, headers=headers)
    assert answer.status_code == status, answer.content.decode()
    return answer.content.decode()


def num_queries(client: Client, url: str) -> int:
    """Return how often a page asks the database; opening an actor's transaction does not count as asking."""
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert client.get(url).status_code == 200
    return sum(1 for query in captured if not _HOUSEKEEPING.search(query["sql"]))
