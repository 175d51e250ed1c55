"""The checklist of one inspection: what each check found, how long it took, and news of it while it works."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dataplane.contracts.verdict import CHECKS, Check, CheckState, Progress
from dataplane.inspect.refusals import Refusals

_NEWS_INTERVAL_S = 0.2

Tell = Callable[[Progress], None]


class Checklist:
    """The checks so far.

    Args:
        refusals: where the checks note what is wrong.
        tell: told when a check begins, comes on and ends.
    """

    def __init__(self, refusals: Refusals, tell: Tell) -> None:
        self._refusals = refusals
        self._tell = tell
        self._ended: dict[str, Check] = {}

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """One line: failed when the body adds a refusal."""
        self._tell(Progress(name))
        found, began = len(self._refusals), time.monotonic()
        yield
        ms = round((time.monotonic() - began) * 1000)
        if len(self._refusals) == found:
            self._end(Check(name, CheckState.PASSED, ms=ms))
        else:
            reason, mend = self._refusals.since(found)
            self._end(Check(name, CheckState.FAILED, reason=reason, mend=mend, ms=ms))

    def passed(self, name: str) -> bool:
        """Say whether a check has passed."""
        return name in self._ended and self._ended[name].state is CheckState.PASSED

    def counter(self, name: str, total_bytes: int) -> Callable[[int], None]:
        """Return what the body of a check calls with the bytes that it has done since the last call."""
        done_bytes, told_s = 0, time.monotonic()

        def add(size_bytes: int) -> None:
            nonlocal done_bytes, told_s
            done_bytes += size_bytes
            if time.monotonic() - told_s >= _NEWS_INTERVAL_S:
                told_s = time.monotonic()
                self._tell(Progress(name, done_bytes, total_bytes))

        return add

    def all(self) -> tuple[Check, ...]:
        """Return every check in order, those that did not end as not run."""
        return tuple(self._ended.get(name, Check(name, CheckState.NOT_RUN)) for name in CHECKS)

    def _end(self, check: Check) -> None:
        self._ended[check.name] = check
        self._tell(Progress(check.name, ended=check))
