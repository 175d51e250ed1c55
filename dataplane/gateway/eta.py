"""When a cold version can be expected, from what its starts took before, and when to come again. Pure."""

from collections.abc import Callable, Iterable

from dataplane.contracts.replica import ReplicaReport

_DEFAULT_S = 5.0
"""Of a start that was never measured."""
_LEAST_S = 1.0
_OVERDUE_PART = 0.25
_SPREAD_S = 3.0
_SPREAD_PART = 0.5


def expected_s(rows: Iterable[ReplicaReport], now_ms: int) -> float | None:
    """Return the seconds until the first of ``rows`` should be READY; None where no start was ever measured.

    A row at rest takes its time from now, one under way from when it began. One that is overdue is expected after a
    part of its usual time.
    """
    expected_ms: list[float] = []
    for row in rows:
        if row.eta_ms is None:
            continue
        passed_ms = 0 if row.idle else max(0, now_ms - row.since_ms)
        expected_ms.append(max(row.eta_ms - passed_ms, row.eta_ms * _OVERDUE_PART))
    return min(expected_ms) / 1000 if expected_ms else None


def come_again_s(expected: float | None, draw: Callable[[], float]) -> float:
    """Return the seconds after which a caller should ask again: once the model is there, spread by ``draw``.

    Client libraries sleep exactly what they are told, so all that were turned away at once would be back at once.
    ``draw`` is uniform in [0, 1).
    """
    start_s = max(_LEAST_S, _DEFAULT_S if expected is None else expected)
    return start_s + draw() * max(_SPREAD_S, start_s * _SPREAD_PART)
