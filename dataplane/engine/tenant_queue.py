"""One tenant's account in the fair queue: its line, what it runs, its counter, and what memory lets pass."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from dataplane.contracts.generation import TenantLoad
from dataplane.engine.figures import TenantFigures
from dataplane.engine.sequence import Sequence
from dataplane.engine.tenant_budget import TenantBudget
from dataplane.engine.timing import WaitAccount

_USUAL_AT_FIRST_TOKENS, _USUAL_AT_LEAST_TOKENS = 256.0, 16.0
_DRIFT = 1.05
"""What is usual changes by so much with every request that ends."""


@dataclass(slots=True)
class Hold:
    """A head that found no memory at its turn: others may pass it until their counters reach ``line``, then they wait.

    The line is the virtual time at that moment plus what the head itself will cost, so what passes is bounded. (An
    allowance counted in steps renews itself with every blocked head. One counted from everybody's own counter lets
    those who are ahead stay ahead and grow the lead with every blocked head.)

    Attributes:
        line: counter units.
        newcomers_left: what tenants that came later may still gain, together: one by one they would never run out.
        since: number of the dispatch before it.
    """

    line: float
    newcomers_left: float
    since: int

    def admits(self, tenant: "TenantQueue") -> bool:
        """Say whether ``tenant`` may still pass."""
        return tenant.counter < self.line and (tenant.since <= self.since or self.newcomers_left > 0)

    def passed_by(self, tenant: "TenantQueue", gain: float) -> None:
        """Note that ``tenant`` passed with a request that will cost it at least ``gain``."""
        if tenant.since > self.since:
            self.newcomers_left -= gain


class TenantQueue:
    """One tenant's line of waiting requests, its running ones, and its account.

    Attributes:
        id: the tenant.
        budget: its blocks.
        counter: service received, in units divided by the weight, lifted on return (see :class:`FairQueue`).
        waiting: requests in order of arrival; the preempted first.
        aside: long generations that made room for others of the tenant, the first to have done so first.
        running: sequences that hold blocks, by request id.
        paused: those of them whose row in a step another tenant has, by request id.
        long: those of them that have had their turn among the tenant's own, the first to have had it first: they make
            room for a head that finds none.
        usual_output_tokens: about the median of what its requests generated.
        head: the waiting request that goes next; it stays the head until it is admitted, gone or preceded by one
            that was preempted, so that "the head is blocked" means something.
        eligible: it has a head that passes its cap.
        hold: set while the head is blocked by memory.
        since: number of the dispatch before it came.
        last_dispatch: number of its last dispatch: ties go to whoever waited longest.
        front_passes: how often the front of the line was passed by a longer cached prefix.
        aside_since_units: what the tenant was served when one of those last went on, or the first came.
        waits: for how long which cause has held the line.
        figures: what it has been through.
        lead_cap_blocks: the largest cap that it had since its counter got ahead of the virtual time.
        served_at_once_step: the step in which it was last admitted with nothing left to wait.
        in_line_since: since when it is eligible and memory does not block it, as a mark of :class:`Leads`.
    """

    __slots__ = (
        "aside",
        "aside_since_units",
        "budget",
        "counter",
        "eligible",
        "figures",
        "front_passes",
        "head",
        "hold",
        "id",
        "in_line_since",
        "last_dispatch",
        "lead_cap_blocks",
        "long",
        "paused",
        "running",
        "served_at_once_step",
        "since",
        "usual_output_tokens",
        "waiting",
        "waits",
    )

    def __init__(self, budget: TenantBudget, counter: float, since: int) -> None:
        self.id = budget.id
        self.budget = budget
        self.counter = counter
        self.waiting: OrderedDict[str, Sequence] = OrderedDict()
        self.aside: OrderedDict[str, Sequence] = OrderedDict()
        self.running: dict[str, Sequence] = {}
        self.paused: dict[str, Sequence] = {}
        self.long: dict[str, Sequence] = {}
        self.usual_output_tokens = _USUAL_AT_FIRST_TOKENS
        self.head: Sequence | None = None
        self.eligible = False
        self.hold: Hold | None = None
        self.since = since
        self.last_dispatch = 0
        self.front_passes = 0
        self.aside_since_units = 0.0
        self.waits = WaitAccount()
        self.figures = TenantFigures()
        self.lead_cap_blocks = budget.cap_blocks
        self.served_at_once_step = 0
        self.in_line_since = 0

    @property
    def is_idle(self) -> bool:
        """It has no request."""
        return not self.num_waiting and not self.running

    @property
    def num_waiting(self) -> int:
        """Its requests that do not run."""
        return len(self.waiting) + len(self.aside)

    @property
    def num_rows(self) -> int:
        """Its sequences that compute."""
        return len(self.running) - len(self.paused)

    @property
    def num_unserved(self) -> int:
        """Its requests that wait, or are paused."""
        return self.num_waiting + len(self.paused)

    def rows_per_weight(self, more: int = 0) -> float:
        """Return how many sequences compute, and ``more``, by weight."""
        return (self.num_rows + more) / self.budget.weight

    def queued(self) -> list[Sequence]:
        """Return its requests that do not run."""
        return [*self.waiting.values(), *self.aside.values()]

    def note_output(self, tokens: int) -> None:
        """Let what is usual follow the median of what requests generated: a few that are long do not move it far."""
        drift = _DRIFT if tokens > self.usual_output_tokens else 1 / _DRIFT
        self.usual_output_tokens = max(_USUAL_AT_LEAST_TOKENS, self.usual_output_tokens * drift)

    def making_room(self) -> Iterable[Sequence]:
        """Return which of its own sequences may be set aside for its head: none for one that is aside itself."""
        return () if self.head is not None and self.head.request_id in self.aside else self.long.values()

    def newest_running(self) -> Sequence:
        """Return the running sequence that arrived last."""
        return max(self.running.values(), key=lambda sequence: sequence.arrival)

    def load(self) -> TenantLoad:
        """Return its figures."""
        budget, figures = self.budget, self.figures
        return TenantLoad(
            tenant_id=self.id,
            guarantee_blocks=budget.guarantee_blocks,
            cap_blocks=budget.cap_blocks,
            weight=budget.weight,
            owned_blocks=budget.owned_blocks,
            cached_blocks=budget.cached_blocks,
            num_running=self.num_rows,
            num_waiting=self.num_unserved,
            service=self.counter,
            num_paused=len(self.paused),
            peak_owned_blocks=budget.peak_owned_blocks,
            preemptions={cause.value: count for cause, count in figures.preemptions.items()},
            within_guarantee_preemptions=figures.within_guarantee_preemptions,
            served_units=figures.served_units,
            service_gap_units=figures.gap.units,
            service_bound_units=figures.gap.bound_units,
            prefix_queries_tokens=figures.prefix_queries_tokens,
            prefix_hits_tokens=figures.prefix_hits_tokens,
            pauses=figures.pauses,
            head_tokens=self.head.num_tokens if self.head is not None else 0,
        )
