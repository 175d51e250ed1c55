"""The life of a delivery, pure: what an attempt's outcome makes of it. Randomness is an argument."""

from dataclasses import dataclass
from datetime import datetime, timedelta

PAUSES_S = (5, 60, 300, 1_800, 7_200, 18_000, 28_800, 36_000)
"""After each failed attempt but the last; together about 25 hours, so that a receiver that is down overnight hears."""
MAX_ATTEMPTS = len(PAUSES_S) + 1
FAILING_FOR = timedelta(days=1)
"""A webhook of which every attempt failed for so long is switched off: the last retry of a message comes after that."""
_SPREAD = 0.2
MOST_AT_ONCE, MOST_OF_TENANT = 40, 5
"""How many deliveries one run sends, and how many of one tenant, whose receivers may all be slow."""

_GONE = 410


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt.

    Args:
        delivered: whether it was taken.
        status: what the receiver answered; None where it did not, and for a letter.
        error: why it was not taken, in words.
        final: whether there is no use in trying again.
    """

    delivered: bool
    status: int | None = None
    error: str = ""
    final: bool = False

    @property
    def gone(self) -> bool:
        """Whether the receiver asks to be left alone for good."""
        return self.status == _GONE


def answered(status: int) -> Outcome:
    """Return what an HTTP status means: 2xx is delivered, 410 ends the webhook, all else is tried again."""
    if 200 <= status < 300:
        return Outcome(True, status)
    if status == _GONE:
        return Outcome(False, status, "It answered 410: it wants no more messages.", final=True)
    if 300 <= status < 400:
        return Outcome(False, status, f"It answered {status}, a redirect, which is not followed.")
    return Outcome(False, status, f"It answered {status}.")


def pause(attempts: int, jitter: float) -> timedelta | None:
    """Return how long to wait after ``attempts`` failed ones; None: that was the last.

    Args:
        attempts: how many there were, one at least.
        jitter: a number in [0, 1) that spreads retries, by up to a fifth.
    """
    if attempts >= MAX_ATTEMPTS:
        return None
    return timedelta(seconds=PAUSES_S[attempts - 1] * (1 + _SPREAD * jitter))


def has_failed_for_good(failing_since: datetime | None, now: datetime) -> bool:
    """Say whether a webhook that fails now, and did since ``failing_since``, is to be switched off."""
    return failing_since is not None and now - failing_since >= FAILING_FOR
