"""Where the time of a request goes. Pure: it is told the time and never asks.

A request waits, from its arrival to its first admission, under the cause that holds the head of its tenant's line;
behind the head it waits for its own tenant, and so for whatever the head waits for. The cause is

* the tenant's own budget, while the head does not fit under the tenant's cap;
* memory, while the head found no blocks at its turn, or all slots for sequences are taken;
* fair share, else: the turn, or what was left of the step, was another's.

It changes by event, so each tenant keeps an account of it, and a request's wait is what the account gained between its
arrival and its admission: a step costs the same however many wait. After its admission a request is in its prefill
until its first token and then in its decode, whatever preemption does to it; what it spends preempted is told apart.
All of it adds up to its time in the engine.
"""

from dataclasses import dataclass
from enum import Enum, auto
from operator import sub
from typing import NamedTuple

from dataplane.contracts.usage import Phases


class Cause(Enum):
    """What holds the head of a tenant's line."""

    OWN_BUDGET = auto()
    FAIR_SHARE = auto()
    MEMORY = auto()


@dataclass(slots=True)
class Time:
    """The engine's time.

    Attributes:
        now_s: as the engine was last told.
        slots_full: no sequence more can run until a slot is free.
        full_s: for how long that was so, ever.
    """

    now_s: float = 0.0
    slots_full: bool = False
    full_s: float = 0.0

    def advance(self, now_s: float) -> None:
        """Move to ``now_s``."""
        if self.slots_full:
            self.full_s += now_s - self.now_s
        self.now_s = now_s


class Waited(NamedTuple):
    """Seconds that something waited, by cause."""

    own_budget_s: float = 0.0
    fair_share_s: float = 0.0
    memory_s: float = 0.0


class WaitAccount:
    """For how long each cause has held one tenant's line, ever.

    Attributes:
        cause: what holds it now; None while nobody waits.
    """

    __slots__ = ("_since_full_s", "_since_s", "_total", "cause")

    def __init__(self) -> None:
        self.cause: Cause | None = None
        self._since_s = 0.0
        self._since_full_s = 0.0
        self._total = Waited()

    def hold(self, cause: Cause | None, time: Time) -> None:
        """Note what holds the line from now on."""
        self._total = self.total(time)
        self._since_s, self._since_full_s = time.now_s, time.full_s
        self.cause = cause

    def total(self, time: Time) -> Waited:
        """Return the account as it stands."""
        own_budget_s, fair_share_s, memory_s = self._total
        passed_s = time.now_s - self._since_s
        if self.cause is Cause.OWN_BUDGET:
            own_budget_s += passed_s
        elif self.cause is Cause.MEMORY:
            memory_s += passed_s
        elif self.cause is Cause.FAIR_SHARE:
            full_s = time.full_s - self._since_full_s
            memory_s += full_s
            fair_share_s += passed_s - full_s
        return Waited(own_budget_s, fair_share_s, memory_s)


class Timeline:
    """What one sequence has been through, by the engine's time.

    Attributes:
        num_steps: steps that computed it.
        num_rows: sequences in those steps, added up.
    """

    __slots__ = (
        "_admitted_s",
        "_arrived_with",
        "_first_token_s",
        "_peak_blocks",
        "_preempted_at_s",
        "_preempted_s",
        "_waited",
        "_waits",
        "num_rows",
        "num_steps",
    )

    def __init__(self, waits: WaitAccount, time: Time) -> None:
        self._waits = waits
        self._arrived_with = waits.total(time)
        self._waited: Waited | None = None
        self._admitted_s: float | None = None
        self._first_token_s: float | None = None
        self._preempted_at_s: float | None = None
        self._preempted_s = 0.0
        self._peak_blocks = 0
        self.num_steps = 0
        self.num_rows = 0

    def admit(self, time: Time) -> None:
        """It leaves the line."""
        if self._admitted_s is None:
            self._admitted_s = time.now_s
            self._waited = self._gained(time)
        elif self._preempted_at_s is not None:
            self._preempted_s += time.now_s - self._preempted_at_s
            self._preempted_at_s = None

    def preempt(self, time: Time, blocks: int) -> None:
        """It goes back to the line and gives up ``blocks``."""
        self._preempted_at_s = time.now_s
        self._peak_blocks = max(self._peak_blocks, blocks)

    def first_token(self, time: Time) -> None:
        """It got its first token."""
        self._first_token_s = time.now_s

    def phases(self, time: Time, blocks: int, preemptions: int) -> Phases:
        """Return the phases so far of a sequence that holds ``blocks`` now. One that has not begun is 0."""
        now_s = time.now_s
        waited = self._gained(time) if self._waited is None else self._waited
        admitted_s = now_s if self._admitted_s is None else self._admitted_s
        first_token_s = now_s if self._first_token_s is None else self._first_token_s
        preempted_s = self._preempted_s
        if self._preempted_at_s is not None:
            preempted_s += now_s - self._preempted_at_s
        return Phases(
            own_budget_ms=round(waited.own_budget_s * 1000),
            fair_share_ms=round(waited.fair_share_s * 1000),
            memory_ms=round(waited.memory_s * 1000),
            prefill_ms=round((first_token_s - admitted_s) * 1000),
            decode_ms=round((now_s - first_token_s) * 1000),
            preempted_ms=round(preempted_s * 1000),
            preemptions=preemptions,
            kv_blocks=max(self._peak_blocks, blocks),
            batch_rows=round(self.num_rows / self.num_steps, 2) if self.num_steps else None,
        )

    def _gained(self, time: Time) -> Waited:
        """What the line's account gained since the arrival."""
        return Waited(*map(sub, self._waits.total(time), self._arrived_with))
