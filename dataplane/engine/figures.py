"""What the engine can say of itself and of each tenant, for those who watch: counters that only grow, and gaps."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from dataplane.contracts.generation import PreemptionCause

GAP_WINDOW_S = 300.0
"""A gap is told for so long, and for twice that at most: it says how things are, not how they were once."""


class Gap(NamedTuple):
    """The lead of another tenant, and how far that other may be ahead."""

    units: float = 0.0
    bound_units: float = 0.0

    @property
    def nearness(self) -> float:
        """The lead as a part of the bound."""
        return self.units / self.bound_units if self.bound_units else 0.0


@dataclass(slots=True)
class TenantFigures:
    """What one tenant has been through since its account was opened; see :class:`TenantLoad` of the contracts."""

    served_units: float = 0.0
    preemptions: Counter[PreemptionCause] = field(default_factory=Counter)
    within_guarantee_preemptions: int = 0
    pauses: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    _gaps: tuple[Gap, Gap] = (Gap(), Gap())
    _window: int = 0

    @property
    def gap(self) -> Gap:
        """The lead of another over it that came nearest to its bound of late."""
        return max(self._gaps, key=lambda gap: gap.nearness)

    def note_gap(self, gap: Gap, now_s: float) -> None:
        """Keep a lead of another tenant if it is the nearest to its bound in this window; forget older windows."""
        window = int(now_s // GAP_WINDOW_S)
        if window != self._window:
            self._gaps = Gap(), self._gaps[0] if window == self._window + 1 else Gap()
            self._window = window
        if gap.nearness > self._gaps[0].nearness:
            self._gaps = gap, self._gaps[1]


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
