from spool_records import Life

from console.attempts import attempts
from dataplane.contracts.usage import Outcome


def test_each_try_is_told_with_what_both_sources_said_of_it():
    life = Life("ten_1")
    first, second = attempts([
        life.closed(4, attempt=2, ttft_ms=120, duration_ms=900),
        life.final(5, attempt=2, duration_ms=880),
        life.admit(attempt=2),
        life.admit(attempt=1),
        life.closed(0, Outcome.REDISPATCHED, attempt=1, duration_ms=300, error_code="replica_lost"),
    ])  # fmt: skip
    assert (first.number, first.replica_id, first.outcome, first.error_code) == (
        1, "rep_1", "redispatched", "replica_lost",
    )  # fmt: skip
    assert first.silent == ("replica",)
    assert (second.generated_tokens, second.delivered_tokens, second.ttft_ms, second.duration_ms) == (5, 4, 120, 900)
    assert second.silent == ()


def test_what_nobody_said_is_not_a_number():
    (refused,) = attempts([Life("ten_1").refused()])
    assert (refused.replica_id, refused.generated_tokens, refused.silent) == ("", None, ())
    (running,) = attempts([Life("ten_1").admit()])
    assert (running.outcome, running.delivered_tokens, running.duration_ms) == ("", None, None)
    assert running.silent == ("gateway", "replica")


def test_without_records_there_are_no_attempts():
    assert attempts([]) == []
