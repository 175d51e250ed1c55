"""Ingestion against itself on real PostgreSQL: threads let go at a barrier."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from spool_records import Life

from controlplane.metering import services
from controlplane.metering.models import DirtyHour, UsageHour, UsageRow
from dataplane.contracts.usage import UsageRecord
from tenants.actor import acting_as, system_actor

PLATFORM = system_actor("ingestion")


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Run ``calls`` in threads that start together; return their results."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        try:
            barrier.wait(timeout=10)
            return call()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def delivery(records: list[UsageRecord]) -> Callable[[], object]:
    return lambda: services.ingest(actor=PLATFORM, records=records)


@pytest.mark.parametrize("seed", range(8))
def test_racing_deliveries_settle_each_request_once(committed, personas, seed):
    lives = [Life(personas.acme.id) for _ in range(5)]
    records = [record for life in lives for record in life.whole(10)]
    shuffle = random.Random(seed)
    batches = [shuffle.sample(records, len(records)) for _ in range(4)]
    receipts = at_once(*(delivery(batch) for batch in batches))
    assert sum(receipt.accepted for receipt in receipts) == len(records)
    with acting_as(PLATFORM):
        rows = UsageRow.objects.values_list("state", "prompt_tokens", "completion_tokens")
        assert list(rows) == [("settled", 7, 10)] * 5


def test_halves_of_a_request_from_replica_and_gateway_meet_in_one_row(committed, personas):
    for _ in range(10):
        life = Life(personas.acme.id)
        at_once(delivery([life.admit(), life.progress(5), life.final(10)]), delivery([life.closed(10)]))
        with acting_as(PLATFORM):
            assert UsageRow.objects.get(pk=life.request_id).state == "settled"


def test_no_row_is_missed_by_a_roll_up_that_races_with_ingestion(committed, personas):
    lives = [Life(personas.acme.id) for _ in range(20)]

    def ingest_all() -> None:
        for life in lives:
            services.ingest(actor=PLATFORM, records=life.whole(10))

    def roll_up_often() -> None:
        for _ in range(30):
            services.roll_up(actor=PLATFORM)

    at_once(ingest_all, roll_up_often, roll_up_often)
    services.roll_up(actor=PLATFORM)
    with acting_as(PLATFORM):
        assert not DirtyHour.objects.exists()
        assert UsageHour.objects.get().requests == 20


def test_a_row_that_settles_while_its_hour_is_added_up_is_added_later(committed, personas, monkeypatch):
    services.ingest(actor=PLATFORM, records=Life(personas.acme.id).whole(10))
    added, go_on = threading.Event(), threading.Event()
    add_up = services._add_up

    def add_up_and_wait(dirty: DirtyHour) -> None:
        add_up(dirty)
        added.set()
        assert go_on.wait(timeout=10)

    monkeypatch.setattr(services, "_add_up", add_up_and_wait)
    with ThreadPoolExecutor(2) as pool:
        rolling = pool.submit(closing, lambda: services.roll_up(actor=PLATFORM))
        assert added.wait(timeout=10)
        ingesting = pool.submit(closing, delivery(Life(personas.acme.id).whole(10)))
        while not ingesting.done() and not is_waiting_for_a_lock():
            pass
        go_on.set()
        rolling.result(timeout=10)
        ingesting.result(timeout=10)
    assert services.roll_up(actor=PLATFORM) == 1
    with acting_as(PLATFORM):
        assert UsageHour.objects.get().requests == 2


def closing(call: Callable[[], object]) -> object:
    try:
        return call()
    finally:
        connection.close()


def is_waiting_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return cursor.fetchone() != (0,)
