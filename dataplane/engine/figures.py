"""What the engine can say of itself and of each tenant, for those who watch: counters that only grow."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from dataplane.contracts.generation import PreemptionCause


@dataclass(slots=True)
class TenantFigures:
    """What one tenant has been through since its account was opened; see :class:`TenantLoad` of the contracts.

    Attributes:
        gap_units, gap_bound_units: the lead of another over it that came nearest to that other's bound.
    """

    served_units: float = 0.0
    preemptions: Counter[PreemptionCause] = field(default_factory=Counter)
    within_guarantee_preemptions: int = 0
    pauses: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    gap_units: float = 0.0
    gap_bound_units: float = 0.0

    def note_gap(self, units: float, bound_units: float) -> None:
        """Keep a lead of another tenant if it is the nearest to its bound so far."""
        worst = self.gap_units / self.gap_bound_units if self.gap_bound_units else 0.0
        if units > worst * bound_units:
            self.gap_units, self.gap_bound_units = units, bound_units


class Leads:
    """The counters that tenants in line have reached, and when: so each can be told how far another got ahead of it.

    A counter that was reached or passed later on says nothing more. So what is kept falls from entry to entry, holds at
    most one of each tenant, and costs a constant a look, on average.
    """

    __slots__ = ("_leads", "_looks")

    def __init__(self) -> None:
        self._leads: list[tuple[int, float, float]] = []  # look, counter, bound of who reached it
        self._looks = 0

    def now(self) -> int:
        """Return a mark for :meth:`since`."""
        return self._looks

    def reach(self, counter: float, bound_units: float) -> None:
        """Note that a tenant in line has come to ``counter``, and how far it may be ahead of others."""
        while self._leads and self._leads[-1][1] <= counter:
            self._leads.pop()
        self._looks += 1
        self._leads.append((self._looks, counter, bound_units))

    def since(self, mark: int) -> tuple[float, float]:
        """Return the greatest counter reached after ``mark``, and its owner's bound; zeros if there was none."""
        place = bisect_left(self._leads, mark + 1, key=lambda lead: lead[0])
        return self._leads[place][1:] if place < len(self._leads) else (0.0, 0.0)
