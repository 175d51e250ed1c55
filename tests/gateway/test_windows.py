"""The rule of the limits, by itself: no minute holds more than the limit, and a steady caller gets 99 % of it."""

from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.catalog import Limits
from dataplane.gateway.windows import WINDOW_MS, Kind, LocalLimits, Scope, Window

gaps_ms = st.lists(st.integers(0, 7_000), min_size=1, max_size=150)


def scope(name: str = "tenant", **limits: int) -> Scope:
    return Scope(name, f"id_{name}", "ten_x", Limits(**limits))


@given(gaps_ms, st.integers(1, 12), st.integers(0, 10**13))
def test_no_minute_wherever_it_begins_holds_more_than_the_limit(gaps: list[int], limit: int, start_ms: int) -> None:
    window, now_ms, passed = Window(), start_ms, []
    for gap_ms in gaps:
        now_ms += gap_ms
        if window.used(now_ms) + 1 <= limit:
            window.add(now_ms, 1)
            passed.append(now_ms)
    for first in passed:
        assert sum(first <= at_ms < first + WINDOW_MS for at_ms in passed) <= limit


@given(st.integers(1, 50), st.integers(0, 499))
def test_a_caller_that_always_asks_gets_within_one_percent_of_its_limit(limit: int, phase_ms: int) -> None:
    window, passed, minutes = Window(), 0, 20
    for now_ms in range(phase_ms, phase_ms + minutes * WINDOW_MS, 100):
        while window.used(now_ms) < limit:
            window.add(now_ms, 1)
            passed += 1
    assert passed >= 0.99 * limit * minutes - limit
    assert passed <= limit * (minutes + 1)


@given(gaps_ms, st.integers(1, 40), st.integers(1, 40))
def test_the_wait_that_is_told_is_the_shortest_that_helps(gaps: list[int], limit: int, amount: int) -> None:
    window, now_ms = Window(), 0
    for gap_ms in gaps:
        now_ms += gap_ms
        window.add(now_ms, 1)
    wait_ms = window.retry_ms(now_ms, amount, limit)
    if amount > limit:
        assert wait_ms == WINDOW_MS or window.retry_ms(now_ms + wait_ms, amount, limit) > 0
    else:
        assert wait_ms == 0 or window.retry_ms(now_ms + wait_ms - 1, amount, limit) == 1
        assert window.retry_ms(now_ms + wait_ms, amount, limit) == 0


@given(st.integers(1, 1000), st.integers(0, 1000), st.integers(0, 2 * WINDOW_MS))
def test_a_settlement_leaves_what_was_really_used(reserved: int, used: int, later_ms: int) -> None:
    window = Window()
    bucket = window.add(1_000, reserved)
    window.correct(1_000 + later_ms, bucket, used - reserved)
    if later_ms < WINDOW_MS:
        assert window.used(1_000 + later_ms) == used
    elif later_ms > WINDOW_MS + 1000:
        # The reservation has left: a refund is moot, a debt is still owed.
        assert window.used(1_000 + later_ms) == max(0, used - reserved)


def test_a_clock_that_steps_back_does_not_lock_a_tenant_out() -> None:
    window = Window()
    window.add(3_600_000, 10)
    assert window.used(0) == 0


def test_a_refused_request_is_counted_nowhere() -> None:
    local = LocalLimits()
    scopes = (scope("tenant", requests_per_minute=5), scope("key", tokens_per_minute=10))
    assert local.reserve(scopes, "r1", 8, 0).refused is None
    verdict = local.reserve(scopes, "r2", 8, 0)
    assert verdict.refused is not None
    assert (verdict.refused.scope, verdict.refused.kind) == ("key", Kind.TOKENS)
    assert local.usage("id_tenant").used(Kind.REQUESTS, 0) == 1


@given(st.integers(1, 20), st.integers(2, 5))
def test_shares_together_stay_within_the_limit_but_always_let_one_request_through(limit: int, sharers: int) -> None:
    scopes = (scope(requests_per_minute=limit, concurrent_requests=limit),)
    gateways = [LocalLimits() for _ in range(sharers)]
    passed = sum(
        gateway.reserve(scopes, f"r{n}-{attempt}", 1, 0, sharers).refused is None
        for n, gateway in enumerate(gateways)
        for attempt in range(limit + 1)
    )
    assert sharers <= passed <= max(limit, sharers)


def test_a_request_larger_than_a_share_but_within_the_limit_runs_alone() -> None:
    local, scopes = LocalLimits(), (scope(tokens_per_minute=100),)
    assert local.reserve(scopes, "r1", 80, 0, sharers=4).refused is None
    assert local.reserve(scopes, "r2", 1, 0, sharers=4).refused is not None


def test_idle_scopes_are_forgotten_and_busy_ones_are_not() -> None:
    local = LocalLimits()
    local.count((scope("tenant", concurrent_requests=1),), "r1", 1, 0)
    local.prune(10 * WINDOW_MS)
    assert local.usage("id_tenant").running == {"r1"}
    local.settle((scope("tenant", concurrent_requests=1),), "r1", 0, 0, 10 * WINDOW_MS)
    local.prune(20 * WINDOW_MS)
    assert local.usage("id_tenant").idle(20 * WINDOW_MS)
