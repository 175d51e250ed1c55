"""Tells a hang from work: a hang is work pending, or no answer at all, and no progress for too long."""

_MAX_STRIDE_S = 2.0


class Watchdog:
    """The time one replica has gone without progress, by this process's own looks at it.

    Each look adds at most two seconds, however long ago the last one was: time in which the fleet itself did not run (a
    suspended machine, a stalled disk) is not held against the replica.
    """

    def __init__(self) -> None:
        self._progress: int | None = None
        self._looked_at_s: float | None = None
        self.stalled_s = 0.0

    def look(self, progress: int | None, busy: bool, now_s: float) -> float:
        """Note one look and return the seconds without progress.

        Args:
            progress: the replica's counter; None when it did not answer.
            busy: whether progress is due, that is, work is pending.
            now_s: the caller's monotonic clock.
        """
        stride_s = 0.0 if self._looked_at_s is None else min(now_s - self._looked_at_s, _MAX_STRIDE_S)
        self._looked_at_s = now_s
        if progress is not None and (progress != self._progress or not busy):
            self._progress = progress
            self.stalled_s = 0.0
        else:
            self.stalled_s += stride_s
        return self.stalled_s

    def restart(self) -> None:
        """Forget the past: a new phase begins."""
        self.stalled_s = 0.0
