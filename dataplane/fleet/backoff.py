"""When a thing that failed may be tried again: at once after a long healthy run, ever later in a crash loop."""

import msgspec

BASE_S = 1.0
CAP_S = 60.0
STABLE_S = 60.0


class History(msgspec.Struct, frozen=True):
    """Failures in a row, the latest cause, and the moment (seconds of the caller's clock) the next try may begin."""

    failures: int
    cause: str
    retry_at_s: float


def after_failure(history: History | None, *, cause: str, healthy_s: float, now_s: float, draw: float) -> History:
    """Return the history after one more failure.

    The first failure is retried at once, the n-th after ``BASE_S * 2 ** (n - 2)`` seconds, at most ``CAP_S``, of which
    a random half is taken off so that many that failed together do not come back together (the "equal jitter" of
    Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015).

    Args:
        history: None when it never failed.
        cause: why it failed this time.
        healthy_s: how long it had been well before; ``STABLE_S`` or more forgets the past.
        now_s: the caller's clock.
        draw: a random number in [0, 1).
    """
    failures = 1 if history is None or healthy_s >= STABLE_S else history.failures + 1
    if failures == 1:
        return History(failures=1, cause=cause, retry_at_s=now_s)
    delay_s = min(CAP_S, BASE_S * 2.0 ** min(failures - 2, 16))
    return History(failures=failures, cause=cause, retry_at_s=now_s + delay_s * (0.5 + draw / 2))
