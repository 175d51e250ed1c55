from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from spool_records import AT_MS, Life

from controlplane.jobs import run
from controlplane.jobs.queue import enqueue
from controlplane.metering import selectors, services
from controlplane.metering.models import UsageHour, UsageRow
from controlplane.metering.selectors import Dimension
from dataplane.contracts.usage import Outcome, RecordKind, Source
from tenants.actor import acting_as, member_actor, platform_actor, system_actor
from tenants.errors import Forbidden, Invalid, NotFound
from tenants.selectors import get_key
from tenants.services import issue_key

PLATFORM = system_actor("tests")
DAY = datetime.fromtimestamp(AT_MS / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.fixture
def bill(personas):
    return member_actor(personas.bill, "acme")


def use(tenant, tokens: int = 10, **fields: object) -> Life:
    life = Life(tenant.id, **fields)
    services.ingest(actor=PLATFORM, records=life.whole(tokens))
    return life


def test_hours_and_days_are_lines_in_order_of_time(personas, bill):
    for hours in (1, 1, 5, 30):
        use(personas.acme, at_ms=int((DAY + timedelta(hours=hours)).timestamp() * 1000))
    use(personas.evil)
    services.roll_up(actor=PLATFORM)
    span = {"since": DAY, "until": DAY + timedelta(days=2)}
    hours = selectors.usage(actor=bill, by=Dimension.HOUR, **span)
    assert [(line.label, line.requests) for line in hours] == [
        ((DAY + timedelta(hours=1)).isoformat(), 2),
        ((DAY + timedelta(hours=5)).isoformat(), 1),
        ((DAY + timedelta(hours=30)).isoformat(), 1),
    ]
    days = selectors.usage(actor=bill, by=Dimension.DAY, **span)
    assert [(line.label, line.completion_tokens) for line in days] == [
        (DAY.isoformat(), 30), ((DAY + timedelta(days=1)).isoformat(), 10),
    ]  # fmt: skip
    assert selectors.usage(actor=bill, by=Dimension.DAY, since=DAY, until=DAY + timedelta(hours=1)) == []


def test_the_platform_sees_everybody_by_tenant(personas, bill):
    use(personas.acme, 4)
    use(personas.evil, 6)
    services.roll_up(actor=PLATFORM)
    span = {"since": DAY, "until": DAY + timedelta(days=1), "by": Dimension.TENANT}
    lines = selectors.usage(actor=platform_actor(personas.root), **span)
    assert [(line.label, line.completion_tokens) for line in lines] == [("acme", 4), ("evil", 6)]
    with pytest.raises(Invalid, match="platform"):
        selectors.usage(actor=bill, **span)


def test_a_month_is_what_was_used_since_its_first_day(personas, bill):
    month = DAY.replace(day=1)
    for day, tokens in ((-1, 100), (0, 1), (20, 2), (25, 400)):
        use(personas.acme, tokens, at_ms=int((month + timedelta(days=day)).timestamp() * 1000))
    services.roll_up(actor=PLATFORM)
    used = selectors.month_usage(actor=bill, now=month + timedelta(days=21))
    assert (used.label, used.requests, used.completion_tokens) == (month.isoformat(), 2, 3)
    assert selectors.month_usage(actor=bill, now=month + timedelta(days=90)).requests == 0


def test_the_last_minute_counts_what_began_in_it(personas, bill):
    now_ms = int(timezone.now().timestamp() * 1000)
    use(personas.acme, 5, at_ms=now_ms - 10_000)
    use(personas.acme, 50, at_ms=now_ms - 70_000)
    assert selectors.last_minute(actor=bill) == (1, 12)


def test_a_request_is_told_with_the_records_it_was_settled_from(personas):
    bob = member_actor(personas.bob, "acme")
    life = use(personas.acme)
    detail = selectors.get_request(actor=bob, request_id=life.request_id)
    assert detail.row.state == "settled"
    kinds = [(record.source, record.kind) for record in detail.records]
    assert kinds == [
        (Source.GATEWAY, RecordKind.CLOSED), (Source.REPLICA, RecordKind.ADMIT),
        (Source.REPLICA, RecordKind.PROGRESS), (Source.REPLICA, RecordKind.FINAL),
    ]  # fmt: skip
    with pytest.raises(NotFound):
        selectors.get_request(actor=member_actor(personas.mallory, "evil"), request_id=life.request_id)


def test_requests_are_for_those_who_may_read_them(personas, bill):
    use(personas.acme)
    with pytest.raises(Forbidden):
        selectors.list_requests(actor=bill)
    with pytest.raises(Forbidden):
        selectors.count_open(actor=bill)


def test_a_page_of_requests_takes_the_same_queries_for_one_and_for_many(personas, django_assert_num_queries):
    bob = member_actor(personas.bob, "acme")
    for _ in range(3):
        use(personas.acme)
        with django_assert_num_queries(5):  # savepoint, set the tenant, the rows, unset, release
            selectors.list_requests(actor=bob)


def test_a_batch_takes_the_same_queries_however_many_requests_it_settles(personas, django_assert_num_queries):
    for size in (1, 40):
        records = [record for _ in range(size) for record in Life(personas.acme.id, key_id="").whole()]
        with django_assert_num_queries(16):
            services.ingest(actor=PLATFORM, records=records)


def test_the_platform_sees_what_is_open_and_what_was_set_aside(personas):
    services.ingest(actor=PLATFORM, records=[Life(personas.acme.id).admit(), Life("ten_nobody").admit()])
    use(personas.acme)
    assert selectors.count_open(actor=platform_actor(personas.root)) == (1, 1)


def test_a_key_knows_when_it_was_last_used(personas):
    alice = member_actor(personas.alice, "acme")
    key = issue_key(actor=alice, name="app").key
    use(personas.acme, key_id=key.id, at_ms=AT_MS)
    use(personas.acme, key_id=key.id, at_ms=AT_MS - 5_000)
    assert get_key(actor=alice, key_id=key.id).last_used_at == datetime.fromtimestamp(AT_MS / 1000, UTC)


def test_the_periodic_jobs_settle_what_was_abandoned_and_add_it_up(personas, monkeypatch):
    life = Life(personas.acme.id)
    services.ingest(actor=PLATFORM, records=[life.admit(), life.progress(4)])
    monkeypatch.setattr(services, "SILENT_GRACE_S", -1)
    with acting_as(PLATFORM):
        jobs = [enqueue(kind=f"metering.{kind}", key="t", payload={}) for kind in ("settle_abandoned", "roll_up")]
    assert [run.run_job(job.id) for job in jobs] == ["done", "done"]
    with acting_as(PLATFORM):
        assert UsageRow.objects.get().outcome == Outcome.FAILED
        assert UsageHour.objects.get().completion_tokens == 4
