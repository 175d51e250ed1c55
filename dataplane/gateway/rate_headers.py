"""What a caller is told of its limits, in two dialects.

``x-ratelimit-*`` as OpenAI documents them: the tightest limit on requests and on tokens, resets as ``1m0.5s``. And the
``RateLimit-Policy`` and ``RateLimit`` fields of draft-ietf-httpapi-ratelimit-headers (structured fields, RFC 9651),
every limit by its own name.
"""

import math
from collections.abc import Iterable, Iterator

from dataplane.gateway.windows import WINDOW_MS, Gauge, Kind

Header = tuple[bytes, bytes]
_OPENAI_NOUNS = {Kind.REQUESTS: "requests", Kind.TOKENS: "tokens"}
_UNITS = {Kind.REQUESTS: "requests", Kind.TOKENS: "tokens", Kind.CONCURRENT: "concurrent-requests"}


def of(gauges: Iterable[Gauge]) -> list[Header]:
    """Return the headers of ``gauges``; none where there are no limits."""
    known = tuple(gauges)
    if not known:
        return []
    headers = [(name.encode(), value.encode()) for name, value in _openai(known)]
    headers.append((b"ratelimit-policy", ", ".join(_policy(gauge) for gauge in known).encode()))
    headers.append((b"ratelimit", ", ".join(_state(gauge) for gauge in known).encode()))
    return headers


def retry_after(retry_after_s: float) -> list[Header]:
    """Return Retry-After in whole seconds, and in ms for the clients that read those."""
    return [
        (b"retry-after", str(max(1, math.ceil(retry_after_s))).encode()),
        (b"retry-after-ms", str(max(1, math.ceil(retry_after_s * 1000))).encode()),
    ]


def _openai(gauges: tuple[Gauge, ...]) -> Iterator[tuple[str, str]]:
    for kind, noun in _OPENAI_NOUNS.items():
        tightest = min((gauge for gauge in gauges if gauge.kind is kind), key=lambda g: g.remaining, default=None)
        if tightest is not None:
            yield f"x-ratelimit-limit-{noun}", str(tightest.limit)
            yield f"x-ratelimit-remaining-{noun}", str(tightest.remaining)
            yield f"x-ratelimit-reset-{noun}", duration(tightest.reset_ms)


def duration(ms: int) -> str:
    """Write a duration as Go does and OpenAI's headers do: ``0s``, ``250ms``, ``1.5s``, ``1m0s``."""
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".")
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _name(gauge: Gauge) -> str:
    return f'"{gauge.scope}-{gauge.kind.value.replace("_", "-")}"'


def _policy(gauge: Gauge) -> str:
    window = "" if gauge.kind is Kind.CONCURRENT else f";w={WINDOW_MS // 1000}"
    return f'{_name(gauge)};q={gauge.limit};qu="{_UNITS[gauge.kind]}"{window}'


def _state(gauge: Gauge) -> str:
    reset = "" if gauge.kind is Kind.CONCURRENT else f";t={math.ceil(gauge.reset_ms / 1000)}"
    return f"{_name(gauge)};r={gauge.remaining}{reset}"
