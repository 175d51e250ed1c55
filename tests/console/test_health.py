from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from console_world import fill, page, report_node
from django.utils import timezone
from domain import PLATFORM

from console import health
from controlplane import servers
from controlplane.deployments import catalog
from controlplane.deployments.models import FleetNode
from controlplane.deployments.selectors import Publishing
from controlplane.jobs.models import Tick
from controlplane.jobs.selectors import Beat, Pulse
from controlplane.metering.selectors import Arrivals
from controlplane.servers import Answer, GatewayAnswer
from dataplane.contracts.replica import ReplicaState
from tenants.actor import acting_as

NOW = datetime(2026, 9, 21, 12, tzinfo=UTC)
BEFORE = NOW - timedelta(minutes=3)


def test_a_clock_ticks_stands_still_or_has_never_ticked():
    on_time = Beat("metering.roll_up", 5, NOW + timedelta(seconds=4))
    assert (found := health.clock([on_time], NOW)).state == health.WELL
    assert found.since == NOW - timedelta(seconds=1)
    late = health.clock([on_time, Beat("jobs.prune", 3600, BEFORE)], NOW)
    assert (late.state, late.since) == (health.DOWN, BEFORE)
    assert "180 s late" in late.words
    assert late.do
    assert health.clock([Beat("jobs.prune", 3600, None)], NOW).state == health.UNKNOWN


def test_jobs_that_nobody_does_are_told_with_their_number_and_since_when():
    assert [part.state for part in health.jobs(Pulse(2, 0, None, 0, None))] == [health.WELL, health.WELL]
    late, dead = health.jobs(Pulse(0, 4, BEFORE, 1, NOW))
    assert (late.state, late.since, "4 " in late.words) == (health.LOOK, BEFORE, True)
    assert (dead.state, dead.since, "retry" in dead.do) == (health.LOOK, NOW, True)


@pytest.mark.parametrize(
    ("waiting", "since", "state"),
    [(0, None, health.WELL), (3, NOW - timedelta(seconds=1), health.WELL), (3, BEFORE, health.DOWN)],
)
def test_a_publisher_is_behind_when_a_change_waits_for_long(waiting, since, state):
    part = health.publishing(Publishing(number=9, waiting=waiting, waiting_since=since), NOW)
    assert part.state == state
    assert bool(part.do) == (state != health.WELL)
    assert "Catalog 9" in part.words


@pytest.mark.parametrize(
    ("said", "state", "words"),
    [
        (GatewayAnswer(3, catalog=9), health.WELL, "applies catalog 9; others are unknown"),
        (GatewayAnswer(3, catalog=7), health.LOOK, "applies catalog 7"),
        (GatewayAnswer(3, catalog=9, away=("redis", "fleet")), health.LOOK, "cannot reach redis and fleet"),
        (GatewayAnswer(3, fault="ConnectError"), health.DOWN, "ConnectError"),
    ],
)
def test_a_gateway_tells_which_catalog_it_applies(said, state, words):
    part = health.gateway(said, latest=9)
    assert part.state == state
    assert words in part.words
    assert bool(part.do) == (state != health.WELL)


@pytest.mark.parametrize(
    ("arrivals", "states"),
    [
        (Arrivals(None, None, 0, None, 0), [health.UNKNOWN, health.WELL, health.WELL]),
        (Arrivals(NOW, 120, 3, NOW, 0), [health.WELL, health.WELL, health.WELL]),
        (Arrivals(NOW, 90_000, 3, NOW - timedelta(hours=1), 2), [health.LOOK, health.LOOK, health.LOOK]),
    ],
)
def test_records_come_late_requests_stay_open_and_some_records_are_set_aside(arrivals, states):
    parts = health.usage(arrivals, NOW)
    assert [part.state for part in parts] == states
    assert all(bool(part.do) == (part.state == health.LOOK) for part in parts)


def test_redis_that_does_not_answer_is_down_with_what_that_means():
    *_, redis = health.servers(Answer(NOW, 1), Answer(None, 1000, "TimeoutError"))
    assert (redis.state, "TimeoutError" in redis.words, bool(redis.do)) == (health.DOWN, True, True)


# --- the page


def test_the_page_tells_all_parts_and_that_all_is_well(root, personas, answering):
    fill(personas)
    catalog.latest(actor=PLATFORM)
    with acting_as(PLATFORM):
        Tick.objects.create(kind="metering.roll_up", next_run_at=timezone.now() + timedelta(seconds=5))
    text = page(root, "/platform/health")
    assert "All well" in text
    for name in (
        "Web", "PostgreSQL", "Redis", "Clock of the jobs", "Jobs that are late", "Jobs that are dead", "Publisher",
        "Gateway", "Node n1", "Replicas", "Usage records", "Requests not settled", "Records set aside", "Certificates",
    ):  # fmt: skip
        assert f'data-label="Part">{name}<' in text, name
    assert "1 ready." in text
    assert "<html" not in page(root, "/platform/health", hx_request="true")


def test_the_page_names_what_is_down_first(root, personas, answering):
    fill(personas)
    failing = SimpleNamespace(replica_id="rep_9", state=ReplicaState.STARTING, cause="it died", restarts=3)
    report_node([failing])
    with acting_as(PLATFORM):
        FleetNode.objects.update(seen_at=timezone.now() - timedelta(minutes=2))
    answering(redis=Answer(None, 1000, "ConnectionError"), gateway=GatewayAnswer(1, fault="ConnectError"))
    text = page(root, "/platform/health")
    verdict = text.split('class="row verdict"')[1].split("</p>")[0]
    assert all(name in verdict for name in ("Down", "Redis", "Gateway", "Node n1", "replicas"))
    assert "1 failed to start" in text
    assert "silent for 12" in text


def test_the_page_works_before_there_is_anything(root, db, personas, answering):
    text = page(root, "/platform/health")
    assert "No node has ever reported" in text
    assert "It has never ticked" in text
    assert "None has ever come in" in text


# --- what answers


def test_servers_that_run_say_since_when(db, django_redis):
    for answer in (servers.ask_postgres(), servers.ask_redis()):
        assert answer.since is not None
        assert answer.since < timezone.now() + timedelta(seconds=1)
        assert answer.fault == ""


def test_servers_that_do_not_run_say_why(settings):
    assert servers.ask_redis().fault == "ConnectionError"  # the tests' settings name one that is not there
    settings.PAGODA_GATEWAY_URL = "http://127.0.0.1:1"
    assert servers.ask_gateway().fault == "ConnectError"


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"status": "ok", "catalog": 7, "away": ["redis"]}', (7, ("redis",), "")),
        (503, b'{"status": "draining"}', (None, (), "draining")),
        (502, b"<html>", (None, (), "DecodeError")),
    ],
)
def test_a_gateway_is_understood_whatever_it_answers(status, body, expected, monkeypatch):
    monkeypatch.setattr(servers.httpx, "get", lambda *_, **__: SimpleNamespace(status_code=status, content=body))
    said = servers.ask_gateway()
    assert (said.catalog, said.away, said.fault) == expected
