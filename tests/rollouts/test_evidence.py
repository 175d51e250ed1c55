import hashlib
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from machine_views import view
from spool_records import AT_MS, Life

from controlplane.metering import arm_selectors, services
from controlplane.rollouts import evidence
from controlplane.rollouts.gates import Outcome as Verdict
from controlplane.rollouts.gates import judge
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.observation import judged
from controlplane.rollouts.plan import DEFAULT_PLAN, JudgeSettings, Step
from controlplane.rollouts.samples import Sample
from controlplane.rollouts.states import RolloutState
from dataplane.contracts.usage import Outcome, Phases
from tenants.actor import acting_as, member_actor, system_actor
from tenants.errors import Forbidden

PLATFORM = system_actor("tests")
BEGAN = datetime.fromtimestamp(AT_MS / 1000, UTC)
SERVED = Phases(decode_ms=900, kv_blocks=4, preemptions=1, batch_rows=2.5)


def served(tenant, *, arm="candidate", at_s=0.0, outcome=Outcome.STOP, tokens=10, forced=False, **closed: object):
    """The records of one request of ``dep_1``; what ``closed`` says is the gateway's word."""
    life = Life(tenant.id, arm=arm, at_ms=AT_MS + round(at_s * 1000), forced=forced, cached_tokens=2)
    usual = {"phases": Phases(cold_ms=closed.pop("cold_ms", 3)), "ttft_ms": 80}
    records = [life.closed(tokens, outcome, **(usual | closed))]
    if outcome is not Outcome.REFUSED:
        records += [life.admit(), life.final(tokens, outcome, phases=SERVED)]
    return records


def serve(tenant, **request: object) -> None:
    """Have one request settle."""
    services.ingest(actor=PLATFORM, records=served(tenant, **request))


def seen(since: datetime = BEGAN, **span: object) -> evidence.Samples:
    return evidence.samples(deployment_id="dep_1", since=since, **span)


def test_a_settled_request_becomes_a_sample_of_its_arm(personas):
    serve(personas.acme, at_s=2, outcome=Outcome.LENGTH)
    serve(personas.evil, arm="stable")
    samples = seen()
    (sample,) = samples.candidate
    assert sample == Sample(
        tenant_id=personas.acme.id, at_ms=AT_MS + 2000, ttft_ms=80, tpot_ms=100.0, prompt_tokens=7, cached_tokens=2,
        output_tokens=10, hit_length_limit=True, kv_blocks=4, preemptions=1, batch_rows=2.5, cold=False,
    )  # fmt: skip
    assert [sample.tenant_id for sample in samples.stable] == [personas.evil.id], "the arms' callers are of all tenants"


ENDS = {
    "failed by us": (Outcome.FAILED, "request_failed", (True, "request_failed")),
    "a replica that was lost": (Outcome.FAILED, "replica_lost", (True, "replica_lost")),
    "no room": (Outcome.REFUSED, "overloaded", (True, "overloaded")),
    "cut short by us": (Outcome.ABORTED, "shutting_down", (True, "shutting_down")),
    "a template that fails": (Outcome.REFUSED, "template_failed", (True, "template_failed")),
    "a caller that left": (Outcome.ABORTED, "", (False, "client_gone")),
    "a key that was revoked": (Outcome.ABORTED, "key_revoked", (False, "client_gone")),
    "the caller's limit": (Outcome.REFUSED, "queue_full", None),
    "the caller's mistake": (Outcome.REFUSED, "context_length_exceeded", None),
}


@pytest.mark.parametrize(("outcome", "code", "sample"), ENDS.values(), ids=ENDS.keys())
def test_an_end_counts_against_an_arm_where_it_was_our_fault(personas, outcome, code, sample):
    serve(personas.acme, outcome=outcome, error_code=code, tokens=3)
    found = [(each.error, each.error_code) for each in seen().candidate]
    assert found == ([sample] if sample else [])
    points = evidence.arm_series(deployment_id="dep_1", since=BEGAN, until=BEGAN + timedelta(minutes=1), buckets=1)
    (point,) = points["candidate"]
    assert point.requests == len(found), "the series counts as the judge does"
    assert point.error_rate == (sample[0] if sample else None)


def test_callers_who_leave_before_the_first_token_do_not_hide_what_fails(personas):
    serve(personas.acme, outcome=Outcome.FAILED, error_code="request_failed", tokens=0, ttft_ms=None)
    for at_s in range(1, 4):
        serve(personas.evil, at_s=at_s, outcome=Outcome.ABORTED, tokens=0, ttft_ms=None)
    serve(personas.evil, at_s=4, outcome=Outcome.ABORTED, error_code="shutting_down", tokens=0, ttft_ms=None)
    assert [each.error_code for each in seen().candidate] == ["shutting_down", "request_failed"]
    points = evidence.arm_series(deployment_id="dep_1", since=BEGAN, until=BEGAN + timedelta(minutes=1), buckets=1)
    assert (points["candidate"][0].requests, points["candidate"][0].error_rate) == (2, 1.0)


@pytest.mark.parametrize("taken_over_by", ["stable", "candidate"])
def test_a_request_that_lost_its_replica_counts_against_that_arm_whoever_took_it_over(personas, taken_over_by):
    life = Life(personas.acme.id)
    first = life.closed(0, Outcome.REDISPATCHED, arm="candidate", error_code="replica_lost")
    then = {"attempt": 1, "arm": taken_over_by}
    services.ingest(
        actor=PLATFORM, records=[first, life.admit(**then), life.final(9, **then), life.closed(9, **then, ttft_ms=80)]
    )
    samples = seen()
    (sample,) = samples.candidate
    assert (sample.error, sample.error_code, sample.ttft_ms, sample.output_tokens) == (True, "replica_lost", None, 0)
    assert [each.error for each in samples.stable] == ([False] if taken_over_by == "stable" else [])


@pytest.mark.parametrize("code", ["shutting_down", "model_cold"])
def test_a_replica_that_could_not_take_a_request_says_nothing_of_its_version(personas, code):
    life = Life(personas.acme.id, arm="candidate")
    first = life.closed(0, Outcome.REDISPATCHED, error_code=code)
    services.ingest(actor=PLATFORM, records=[first, life.final(9, attempt=1), life.closed(9, attempt=1)])
    assert [sample.error for sample in seen().candidate] == [False]


def test_what_does_not_speak_of_the_step_is_left_out(personas):
    serve(personas.acme, at_s=-1)
    serve(personas.acme, at_s=60)
    serve(personas.acme, forced=True)
    services.ingest(actor=PLATFORM, records=[Life(personas.acme.id, arm="candidate").admit()])
    services.ingest(actor=PLATFORM, records=Life(personas.acme.id, arm="candidate", deployment_id="dep_2").whole())
    assert seen(until=BEGAN + timedelta(seconds=60)).candidate == ()
    assert len(seen().candidate) == 1


def test_a_wait_for_a_start_is_cold_and_a_turn_is_not(personas):
    serve(personas.acme, at_s=1, cold_ms=499)
    serve(personas.acme, at_s=2, cold_ms=500)
    assert [sample.cold for sample in seen().candidate] == [True, False], "the latest first"


def test_a_request_whose_replica_said_nothing_of_its_phases_is_a_sample_all_the_same(personas):
    life = Life(personas.acme.id, arm="candidate")
    services.ingest(actor=PLATFORM, records=life.whole(1))
    (sample,) = seen().candidate
    assert (sample.tpot_ms, sample.kv_blocks, sample.preemptions, sample.batch_rows) == (None, None, None, None)


def test_only_the_latest_of_an_arm_are_read(personas):
    for at_s in (1, 3, 2):
        serve(personas.acme, at_s=at_s)
    assert [sample.at_ms - AT_MS for sample in seen(limit=2).candidate] == [3000, 2000]


def test_everything_is_read_by_the_index_of_the_arms_and_no_other_arm_with_it(personas):
    serve(personas.acme)
    now = BEGAN + timedelta(hours=1)
    with CaptureQueriesContext(connection) as captured:
        seen()
        evidence.arm_series(deployment_id="dep_1", since=BEGAN, until=now, buckets=10)
        evidence.traffic_per_minute(deployment_id="dep_1", now=now)
    asked = [query["sql"] for query in captured if "metering_usagerow" in query["sql"]]
    assert len(asked) == 6, "two for each arm, the series, the traffic"
    with acting_as(PLATFORM), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for number, sql in enumerate(asked):
            cursor.execute(f"EXPLAIN {sql}")
            plan = str(cursor.fetchall())
            condition = plan[plan.index("Index Cond") :].split("Filter", maxsplit=1)[0]
            assert ("usage_by_lost_arm" if number in (1, 3) else "usage_by_arm") in plan, sql
            assert number > 3 or "arm)" in condition, f"the other arm's rows are read as well: {sql}"


def test_a_step_counts_the_arm_that_has_the_lesser_part_of_what_it_needs():
    sample = Sample(tenant_id="ten_1", at_ms=0)
    step, settings = Step(50, 0, 800), JudgeSettings(quantile_samples=500)

    def count(stable: int, candidate: int) -> int:
        return evidence.Samples(stable=(sample,) * stable, candidate=(sample,) * candidate).count(step, settings)

    assert [count(500, 800), count(5000, 799), count(250, 800), count(0, 800), count(500, 0)] == [800, 799, 400, 0, 0]


def test_series_of_both_arms_have_the_same_moments_and_say_where_nothing_happened(personas):
    for at_s, arm, ttft_ms in ((1, "stable", 50), (2, "stable", 70), (65, "candidate", 90), (70, "previous", 1)):
        serve(personas.acme, at_s=at_s, arm=arm, ttft_ms=ttft_ms)
    serve(personas.acme, at_s=3, arm="stable", ttft_ms=9_000, cold_ms=8_000)
    serve(personas.acme, at_s=4, arm="stable", outcome=Outcome.FAILED, error_code="internal", tokens=0)
    series = evidence.arm_series(deployment_id="dep_1", since=BEGAN, until=BEGAN + timedelta(minutes=3), buckets=3)
    assert set(series) == {"stable", "candidate"}
    assert [point.at for point in series["stable"]] == [point.at for point in series["candidate"]]
    busy, *quiet = series["stable"]
    assert (busy.requests, busy.error_rate, busy.ttft_p50_ms, busy.ttft_p95_ms) == (4, 0.25, 50, 70)
    assert busy.tpot_p50_ms == busy.tpot_p95_ms == 100.0, "900 ms over nine tokens after the first"
    assert [(point.requests, point.error_rate) for point in quiet] == [(0, None), (0, None)]
    assert [point.requests for point in series["candidate"]] == [0, 1, 0]


@pytest.mark.parametrize("buckets", [0, 501])
def test_a_series_is_bounded(buckets):
    with pytest.raises(ValueError, match="from 1 to 500"):
        evidence.arm_series(deployment_id="dep_1", since=BEGAN, until=BEGAN + timedelta(hours=1), buckets=buckets)


def test_traffic_is_that_of_the_last_day_or_since_there_is_any(personas):
    now = BEGAN + timedelta(minutes=10)
    assert evidence.traffic_per_minute(deployment_id="dep_1", now=now) == 0
    for at_s in (0, 60, 120, 300):
        serve(personas.acme, at_s=at_s, arm="stable")
    serve(personas.acme, outcome=Outcome.REFUSED, error_code="requests_per_minute", tokens=0)
    assert evidence.traffic_per_minute(deployment_id="dep_1", now=now) == pytest.approx(0.4)
    later = now + timedelta(hours=24) - timedelta(minutes=6)  # the first four minutes are a day ago
    assert evidence.traffic_per_minute(deployment_id="dep_1", now=later) == pytest.approx(1 / 1439, rel=0.01)


def test_a_plan_makes_ticks_read_many_requests_only_where_they_are_counted(monkeypatch):
    read: list[int] = []

    def none(*, limit: int, **_: object) -> evidence.Samples:
        read.append(limit)
        return evidence.Samples((), ())

    monkeypatch.setattr(evidence, "samples", none)
    plan = msgspec.structs.replace(DEFAULT_PLAN, steps=(Step(50, 0, 9_000),))
    for state in (RolloutState.BAKE, RolloutState.PAUSED, RolloutState.RAMP, RolloutState.AWAITING_APPROVAL):
        paused_from = RolloutState.BAKE if state is RolloutState.PAUSED else None
        judged(Rollout(deployment_id="dep_1"), view(state, plan=plan, paused_from=paused_from, step_started_at=BEGAN))
    assert read == [9_000] + 3 * [evidence.WATCHED_SAMPLES]


def test_a_tick_hears_of_a_stop_at_once_and_of_the_gates_only_when_it_looks(personas):
    rollout = Rollout(deployment_id="dep_1")
    both = [served(personas.acme, at_s=number, arm=arm) for number in range(12) for arm in ("stable", "candidate")]
    services.ingest(actor=PLATFORM, records=[record for records in both for record in records])
    watched, samples = judged(rollout, view(RolloutState.BAKE, step_started_at=BEGAN))
    assert (watched.outcome, watched.verdicts, samples) == (Verdict.INCONCLUSIVE, (), 0), "the stable arm has too few"
    looked, _ = judged(rollout, view(RolloutState.JUDGE, step_started_at=BEGAN))
    assert (looked.outcome, len(looked.verdicts)) == (Verdict.INCONCLUSIVE, 10)
    broken = {"outcome": Outcome.FAILED, "error_code": "logits_not_finite", "tokens": 0}
    later = [served(personas.acme, at_s=20 + number, **broken) for number in range(12)]
    later += [served(personas.evil, at_s=20, arm="stable") for _ in range(200)]
    services.ingest(actor=PLATFORM, records=[record for records in later for record in records])
    stopped, _ = judged(rollout, view(RolloutState.PAUSED, paused_from=RolloutState.BAKE, step_started_at=BEGAN))
    assert stopped.outcome is Verdict.HARD_STOP
    assert "12 of them among its first 24 requests" in stopped.words


def test_reading_over_tenants_is_for_the_platform(personas):
    alice = member_actor(personas.alice, "acme")
    with pytest.raises(Forbidden):
        arm_selectors.counted_since(actor=alice, deployment_id="dep_1", since=BEGAN, codes=evidence.CODES)


def test_the_bundle_holds_what_was_gone_by_and_its_digest_is_of_all_of_it(personas):
    serve(personas.acme)
    judgement = judge(seen().stable, seen().candidate, DEFAULT_PLAN.judge, 1)
    assert judgement.outcome is Verdict.INCONCLUSIVE
    bundle, digest = evidence.bundle(plan=DEFAULT_PLAN, judgement=judgement, memory="Preflight passed.")
    assert bundle["plan"]["steps"][0]["weight"] == 1
    assert bundle["candidate"]["requests"] == 1
    assert [verdict["gate"] for verdict in bundle["verdicts"]][:2] == ["errors", "ttft_p95"]
    with connection.cursor() as cursor:  # as a JSON column gives it back: keys in another order
        cursor.execute("SELECT %s::jsonb", [json.dumps(bundle)])
        (stored,) = cursor.fetchone()
    stored = json.loads(stored) if isinstance(stored, str) else stored
    assert hashlib.sha256(msgspec.json.encode(stored, order="deterministic")).hexdigest() == digest
    other = evidence.bundle(plan=DEFAULT_PLAN, judgement=judgement, memory="Preflight passed!")[1]
    assert other != digest
