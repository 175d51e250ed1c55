"""Measures starts: from the moment a replica was needed to the moment it was READY, and from how warm it began."""

from collections.abc import Collection

import msgspec

from dataplane.contracts.replica import Tier
from dataplane.fleet.plan import Assignment


class Need(msgspec.Struct, frozen=True):
    """Since when (monotonic seconds) a replica is needed, and the tier it was to start from."""

    since_s: float
    tier: Tier


class Starts:
    """The needs that no process answers yet. Clocks are the caller's."""

    def __init__(self) -> None:
        self._open: dict[Assignment, Need] = {}

    def missing(self, assignments: Collection[Assignment], tier: Tier, now_s: float) -> None:
        """Note what is missing now: what was missing before keeps its moment, the rest is forgotten.

        Args:
            assignments: those that lack a process.
            tier: from where those that are new here would start.
            now_s: the time.
        """
        fresh = Need(now_s, tier)
        self._open = {assignment: self._open.get(assignment, fresh) for assignment in assignments}

    def of(self, assignment: Assignment) -> Need | None:
        """Return the need of an assignment that is missing."""
        return self._open.get(assignment)

    def answered(self, assignment: Assignment, tier: Tier, now_s: float) -> Need:
        """Return the need that a process now answers; one that nobody had noted begins now, from ``tier``."""
        return self._open.pop(assignment, Need(now_s, tier))
