import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.gateway import rate_headers
from dataplane.gateway.windows import Gauge, Kind

gauges = st.builds(
    Gauge,
    scope=st.sampled_from(["tenant", "key"]),
    kind=st.sampled_from(Kind),
    limit=st.integers(0, 10**9),
    used=st.integers(0, 2 * 10**9),
    reset_ms=st.integers(0, 60_500),
)


def headers(*of: Gauge) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in rate_headers.of(of)}


def test_the_tightest_limit_is_the_one_openai_clients_see() -> None:
    found = headers(
        Gauge("tenant", Kind.REQUESTS, 100, 98, 30_000),
        Gauge("tenant", Kind.TOKENS, 5000, 1000, 61_500),
        Gauge("key", Kind.REQUESTS, 10, 5, 250),
        Gauge("key", Kind.CONCURRENT, 4, 1, 0),
    )
    assert found == {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "30s",
        "x-ratelimit-limit-tokens": "5000",
        "x-ratelimit-remaining-tokens": "4000",
        "x-ratelimit-reset-tokens": "1m1.5s",
        "ratelimit-policy": (
            '"tenant-requests-per-minute";q=100;qu="requests";w=60, '
            '"tenant-tokens-per-minute";q=5000;qu="tokens";w=60, '
            '"key-requests-per-minute";q=10;qu="requests";w=60, '
            '"key-concurrent-requests";q=4;qu="concurrent-requests"'
        ),
        "ratelimit": (
            '"tenant-requests-per-minute";r=2;t=30, "tenant-tokens-per-minute";r=4000;t=62, '
            '"key-requests-per-minute";r=5;t=1, "key-concurrent-requests";r=3'
        ),
    }


def test_without_limits_nothing_is_said() -> None:
    assert rate_headers.of(()) == []


@given(st.lists(gauges, min_size=1, max_size=6))
def test_what_is_left_is_never_negative(some: list[Gauge]) -> None:
    for name, value in headers(*some).items():
        if "remaining" in name:
            assert int(value) >= 0


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0s"), (1, "1ms"), (999, "999ms"), (1000, "1s"), (1500, "1.5s"), (60_000, "1m0s"), (60_500, "1m0.5s")],
)
def test_durations_are_written_as_openai_writes_them(ms: int, text: str) -> None:
    assert rate_headers.duration(ms) == text


@given(st.integers(0, 10**7))
def test_a_duration_reads_back(ms: int) -> None:
    match = re.fullmatch(r"(?:(\d+)m)?(?:([\d.]+)s)?|(\d+)ms", rate_headers.duration(ms))
    minutes, seconds, millis = match.groups()
    assert round(int(minutes or 0) * 60_000 + float(seconds or 0) * 1000 + int(millis or 0)) == ms


@given(st.floats(0, 1000))
def test_retry_after_never_invites_before_its_time(seconds: float) -> None:
    found = {name.decode(): int(value) for name, value in rate_headers.retry_after(seconds)}
    assert found["retry-after"] >= max(1, seconds)
    assert found["retry-after-ms"] >= seconds * 1000
