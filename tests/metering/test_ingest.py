import random
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, connection
from django.utils import timezone
from spool_records import AT_MS, Life

from controlplane.metering import services
from controlplane.metering.models import (
    DirtyHour,
    EndedReplica,
    Price,
    RejectedRecord,
    SpoolRecord,
    UsageHour,
    UsageRow,
)
from dataplane.contracts.usage import Outcome, Phases, UsageReceipt
from tenants.actor import acting_as, member_actor, platform_actor, system_actor
from tenants.errors import Forbidden, Invalid

PLATFORM = system_actor("ingestion")
HOUR = datetime.fromtimestamp(AT_MS // 3_600_000 * 3600, UTC)


def ingest(*records) -> UsageReceipt:
    return services.ingest(actor=PLATFORM, records=records)


def row(life: Life) -> UsageRow:
    with acting_as(PLATFORM):
        return UsageRow.objects.get(pk=life.request_id)


def set_price(**fields) -> None:
    """Prices of the past exist only where time has gone by; here it has."""
    with acting_as(PLATFORM):
        Price.objects.create(**{"effective_from": HOUR - timedelta(days=1)} | fields)


def test_a_whole_request_becomes_one_settled_row_with_its_charge(personas):
    set_price(input_microusd=1_000_000, output_microusd=3_000_000)
    life = Life(personas.acme.id)
    assert ingest(*life.whole(10)) == UsageReceipt(accepted=4, duplicates=0)
    settled = row(life)
    assert (settled.state, settled.outcome) == ("settled", "stop")
    assert (settled.prompt_tokens, settled.completion_tokens, settled.charge_microusd) == (7, 10, 37)
    assert settled.started_at == datetime.fromtimestamp(AT_MS / 1000, UTC)


def test_any_order_any_batches_and_any_repetition_give_the_same_row(personas):
    shuffle = random.Random(7)
    expected = None
    for _ in range(6):
        life = Life(personas.acme.id)
        records = [life.admit(), life.progress(2), life.closed(0, Outcome.REDISPATCHED), life.admit(attempt=1),
                   life.progress(5, attempt=1), life.final(9, attempt=1), life.closed(9, attempt=1)]  # fmt: skip
        deliveries = records * 2
        shuffle.shuffle(deliveries)
        accepted = 0
        while deliveries:
            size = shuffle.randint(1, 5)
            batch, deliveries = deliveries[:size], deliveries[size:]
            accepted += ingest(*batch).accepted
        assert accepted == len(records)
        values = {field: getattr(row(life), field) for field in services._UPDATED if field != "seen_at"}
        expected = expected or values
        assert values == expected
    assert expected["completion_tokens"] == 9
    assert expected["attempts"] == 2


def test_an_open_request_charges_nothing_until_it_settles(personas):
    set_price(input_microusd=1_000_000, output_microusd=1_000_000)
    life = Life(personas.acme.id)
    ingest(life.admit(), life.progress(5))
    assert (row(life).state, row(life).completion_tokens, row(life).charge_microusd) == ("open", 5, 0)
    ingest(life.final(8), life.closed(8))
    assert (row(life).state, row(life).charge_microusd) == ("settled", 15)


def test_a_row_keeps_the_phases_of_both_sources_and_whether_the_caller_chose_the_arm(personas):
    life = Life(personas.acme.id)
    by_gateway, by_replica = Phases(auth_ms=1, cold_ms=0), Phases(fair_share_ms=3, batch_rows=1.5)
    ingest(life.admit(), life.final(8, phases=by_replica), life.closed(8, forced=True, phases=by_gateway))
    settled = row(life)
    assert settled.phases == {"auth_ms": 1, "cold_ms": 0, "fair_share_ms": 3, "batch_rows": 1.5}
    assert settled.known_phases == Phases(auth_ms=1, cold_ms=0, fair_share_ms=3, batch_rows=1.5)
    assert settled.forced
    without = Life(personas.acme.id)
    ingest(*without.whole())
    assert (row(without).known_phases, row(without).forced) == (Phases(), False)


def test_an_interrupted_delivery_leaves_nothing_and_is_repeated_whole(personas, monkeypatch):
    life = Life(personas.acme.id)
    with monkeypatch.context() as patch:
        patch.setattr(services, "_mark", lambda _hours: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ingest(*life.whole())
    with acting_as(PLATFORM):
        assert not SpoolRecord.objects.exists()
        assert not UsageRow.objects.exists()
    assert ingest(*life.whole()).accepted == 4


def test_a_record_that_no_row_can_be_made_of_is_kept_apart_and_blocks_nobody(personas):
    life = Life(personas.acme.id)
    bad = [
        Life("ten_nobody").admit(),
        life.admit(request_id="42"),
        life.progress(-1),
        life.progress(5, error_code="a\0b"),
        life.progress(5, at_ms=2**60),
        life.progress(5, endpoint="x" * 65),
        life.progress(5, duration_ms=2**40),
        life.final(5, phases=Phases(memory_ms=-1)),
    ]
    assert ingest(*bad, *life.whole()) == UsageReceipt(accepted=12, duplicates=0)
    assert ingest(*bad) == UsageReceipt(accepted=0, duplicates=8)
    assert row(life).state == "settled"
    with acting_as(PLATFORM):
        assert RejectedRecord.objects.count() == 8
        assert RejectedRecord.objects.filter(reason="there is no such tenant").count() == 1


def test_a_request_belongs_to_the_tenant_that_was_named_first(personas):
    life = Life(personas.acme.id)
    ingest(life.admit())
    assert ingest(life.final(5, tenant_id=personas.evil.id)).accepted == 1
    with acting_as(PLATFORM):
        assert RejectedRecord.objects.get().reason == "another tenant has this request"
    assert row(life).tenant_id == personas.acme.id
    assert row(life).state == "open"


def test_a_request_of_a_dead_replica_settles_after_the_grace_and_late_records_still_correct_it(personas, monkeypatch):
    life = Life(personas.acme.id)
    ingest(life.admit(), life.progress(4), life.closed(6, Outcome.FAILED, error_code="replica_lost"))
    with acting_as(PLATFORM):
        services.replica_ended(actor=PLATFORM, replica_ids=["rep_0", "rep_0"])
        services.replica_ended(actor=PLATFORM, replica_ids=["rep_0"])
    assert services.settle_abandoned(actor=PLATFORM) == 0
    monkeypatch.setattr(services, "GONE_GRACE_S", -1)
    assert services.settle_abandoned(actor=PLATFORM) == 1
    assert services.settle_abandoned(actor=PLATFORM) == 0
    assert (row(life).state, row(life).completion_tokens, row(life).error_code) == ("settled", 6, "replica_lost")
    ingest(life.progress(8, sequence=2))
    assert (row(life).state, row(life).completion_tokens) == ("settled", 8)


def test_a_request_whose_gateway_was_lost_settles_by_the_replicas_word(personas, monkeypatch):
    finished, running = Life(personas.acme.id), Life(personas.acme.id)
    ingest(finished.admit(), finished.final(8), running.admit(), running.progress(3))
    assert services.settle_abandoned(actor=PLATFORM) == 0
    monkeypatch.setattr(services, "CLOSED_GRACE_S", -1)
    assert services.settle_abandoned(actor=PLATFORM) == 1
    assert (row(finished).outcome, row(finished).completion_tokens) == ("stop", 8)
    assert (row(running).state, row(running).waits_for) == ("open", "replica")


def test_a_living_request_is_not_swept_and_a_silent_one_is(personas, monkeypatch):
    life = Life(personas.acme.id)
    ingest(life.admit())
    with acting_as(PLATFORM):
        EndedReplica.objects.create(replica_id="rep_other", ended_at=timezone.now() - timedelta(days=1))
    assert services.settle_abandoned(actor=PLATFORM) == 0
    monkeypatch.setattr(services, "SILENT_GRACE_S", -1)
    assert services.settle_abandoned(actor=PLATFORM) == 1
    assert (row(life).outcome, row(life).prompt_tokens) == ("failed", 0)


def test_an_hour_is_added_up_by_line_and_again_whenever_a_row_changes(personas):
    set_price(input_microusd=0, output_microusd=1_000_000)
    one, two, other = (Life(personas.acme.id), Life(personas.acme.id), Life(personas.acme.id, key_id="key_2"))
    refused, evil = Life(personas.acme.id), Life(personas.evil.id)
    ingest(*one.whole(10), *other.whole(3), refused.refused(), *evil.whole(99), two.admit())
    assert services.roll_up(actor=PLATFORM) == 2
    assert services.roll_up(actor=PLATFORM) == 0
    lines = "key_id", "version_id", "requests", "refused_requests", "completion_tokens", "charge_microusd"
    with acting_as(system_actor("test", personas.acme)):
        assert sorted(UsageHour.objects.values_list(*lines)) == [
            ("key_1", "", 1, 1, 0, 0), ("key_1", "ver_1", 1, 0, 10, 10), ("key_2", "ver_1", 1, 0, 3, 3),
        ]  # fmt: skip
    ingest(two.final(5), two.closed(5))
    assert services.roll_up(actor=PLATFORM) == 1
    with acting_as(PLATFORM):
        hour = UsageHour.objects.get(tenant=personas.acme, key_id="key_1", version_id="ver_1")
        assert (hour.hour, hour.requests, hour.completion_tokens) == (HOUR, 2, 15)
        before = list(UsageHour.objects.order_by("key_id").values_list(*lines))
        DirtyHour.objects.bulk_create(
            DirtyHour(tenant=tenant, hour=HOUR, marked_at=timezone.now()) for tenant in (personas.acme, personas.evil)
        )
    services.roll_up(actor=PLATFORM)
    with acting_as(PLATFORM):
        assert sorted(UsageHour.objects.values_list(*lines)) == sorted(before)


def test_a_late_record_that_moves_a_request_to_another_hour_corrects_both(personas):
    life = Life(personas.acme.id)
    ingest(*life.whole(10))
    services.roll_up(actor=PLATFORM)
    ingest(life.progress(1, sequence=3, at_ms=AT_MS - 3_600_000))
    assert services.roll_up(actor=PLATFORM) == 2
    with acting_as(PLATFORM):
        assert list(UsageHour.objects.values_list("hour", "requests")) == [(HOUR - timedelta(hours=1), 1)]


def test_the_price_is_the_deployments_own_else_the_default_of_that_time(personas):
    set_price(input_microusd=0, output_microusd=1_000_000, effective_from=HOUR - timedelta(days=9))
    set_price(input_microusd=0, output_microusd=2_000_000)
    set_price(input_microusd=0, output_microusd=9_000_000, effective_from=HOUR + timedelta(days=1))
    set_price(input_microusd=0, output_microusd=5_000_000, deployment_id="dep_special")
    charges = []
    for fields in ({}, {"deployment_id": "dep_special"}, {"at_ms": AT_MS - 5 * 86_400_000}):
        life = Life(personas.acme.id, **fields)
        ingest(*life.whole(1))
        charges.append(row(life).charge_microusd)
    assert charges == [2, 5, 1]


def test_a_price_is_set_for_the_future_by_the_platform_alone(personas):
    later = timezone.now() + timedelta(hours=1)
    root = platform_actor(personas.root)
    price = services.set_price(actor=root, input_microusd=1, output_microusd=2, effective_from=later)
    assert price.tokens.output_microusd == 2
    with pytest.raises(Invalid, match="past"):
        services.set_price(actor=root, input_microusd=1, output_microusd=2, effective_from=HOUR)
    with pytest.raises(Forbidden):
        services.set_price(
            actor=member_actor(personas.alice, "acme"), input_microusd=0, output_microusd=0, effective_from=later
        )


def test_only_the_platform_ingests(personas):
    with pytest.raises(Forbidden):
        services.ingest(actor=member_actor(personas.alice, "acme"), records=[])


def test_the_database_itself_refuses_a_row_that_bills_below_the_delivery(personas):
    life = Life(personas.acme.id)
    ingest(*life.whole())
    with pytest.raises(IntegrityError, match="usage_delivered_billed_generated"), acting_as(PLATFORM):
        UsageRow.objects.update(delivered_tokens=11)


@pytest.mark.parametrize(
    "model",
    [SpoolRecord, UsageRow, UsageHour, DirtyHour, RejectedRecord, EndedReplica],
    ids=lambda model: model.__name__,
)
def test_no_table_shows_a_stranger_anything(personas, model):
    ingest(*Life(personas.acme.id).whole(), Life("ten_nobody").admit())
    services.roll_up(actor=PLATFORM)
    with acting_as(PLATFORM):
        services.replica_ended(actor=PLATFORM, replica_ids=["rep_0"])
        DirtyHour.objects.create(tenant=personas.acme, hour=HOUR, marked_at=timezone.now())
        assert model.objects.exists()
    with acting_as(member_actor(personas.mallory, "evil")):
        assert not model.objects.exists()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {model._meta.db_table}")
        assert cursor.fetchone() == (0,)


def test_spool_records_are_never_changed(personas):
    ingest(*Life(personas.acme.id).whole())
    for change in (lambda: SpoolRecord.objects.update(attempt=1), lambda: SpoolRecord.objects.all().delete()):
        with pytest.raises(Exception, match="permission denied"), acting_as(PLATFORM):
            change()
