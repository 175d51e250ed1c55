"""The corrected virtual token counter: whose turn it is.

The rule is the virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). Every
tenant has a counter of the service it received, in units divided by its weight, and the least counter goes first. Where
it differs from the paper, a comment says what goes wrong otherwise.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from dataplane.engine.config import EngineConfig
from dataplane.engine.figures import Gap, Leads
from dataplane.engine.lazy_heap import LazyHeap
from dataplane.engine.preemption import row_giver
from dataplane.engine.sequence import Sequence
from dataplane.engine.tenant_budget import TenantBudget
from dataplane.engine.tenant_queue import Hold, TenantQueue
from dataplane.engine.timing import Cause, Time

Turn = tuple[float, int, str]
"""A place in the order of tenants."""


class FairQueue:
    """All tenants, their counters, the virtual time, and the time of the clock.

    A tenant is eligible while it has a request waiting whose head passes the tenant's own cap. One that its cap blocks
    is not: it would pin the virtual time while it cannot run anyway. One that merely runs is not either: it would
    gather credit by keeping a single request alive.

    The eligible are kept in heaps that are looked at from the top, so a step costs what it serves and not what waits.

    Attributes:
        tenants: all of them, by id.
        busy: those that run something.
        paused: sequences that keep their blocks while another tenant has their row, in the order in which they gave it.
        virtual_time: the least counter that was served last.
        num_waiting: requests of all tenants.
        time: the engine's.

    Args:
        config: windows and weights.
        passes_cap: says whether a waiting sequence fits its tenant's cap now.
        cached_blocks: says how much of a waiting sequence is in the prefix cache now.
    """

    def __init__(
        self,
        config: EngineConfig,
        passes_cap: Callable[[Sequence], bool],
        cached_blocks: Callable[[Sequence], int],
    ) -> None:
        self.tenants: dict[str, TenantQueue] = {}
        self.busy: dict[str, TenantQueue] = {}
        self.paused: dict[str, Sequence] = {}
        self.virtual_time = 0.0
        self.num_waiting = 0
        self.time = Time()
        self._config = config
        self._passes_cap = passes_cap
        self._cached_blocks = cached_blocks
        self._eligible = LazyHeap(self.turn, _is_eligible)
        self._unblocked = LazyHeap(self.turn, _is_unblocked)
        self._in_line = LazyHeap(self.turn, _is_eligible)  # what a step takes out of it, it puts back
        self._dispatches = 0
        self._leads = Leads()
        self._debt_units = 0.0  # what others may be charged here for service elsewhere; it widens the bound

    # who is there

    def add_tenant(self, budget: TenantBudget) -> TenantQueue:
        """Open an account at the virtual time."""
        tenant = TenantQueue(budget, self.virtual_time, self._dispatches)
        self.tenants[tenant.id] = tenant
        return tenant

    def is_forgettable(self, tenant: TenantQueue) -> bool:
        """Say whether the account can be dropped: idle, and with no counter that it would find when it came back.

        It comes back at the virtual time, so until it is behind by more than the credit it is kept: who comes and goes
        would lose its credit each time.
        """
        would_find = self.virtual_time - self._config.return_credit_units < tenant.counter != self.virtual_time
        return tenant.is_idle and tenant.budget.held_blocks == 0 and not would_find

    def eligible(self) -> Iterator[TenantQueue]:
        """Return the tenants that are eligible now, in no order."""
        return iter(self._eligible)

    def line(self) -> LazyHeap[TenantQueue]:
        """Return the eligible in the order of their turns. A step takes out whom it serves, and puts them back."""
        return self._in_line

    def turn(self, tenant: TenantQueue, pending_units: float = 0.0) -> Turn:
        """Return the place of ``tenant``, least first, with what the step will charge it and has not yet."""
        return tenant.counter + pending_units / tenant.budget.weight, tenant.last_dispatch, tenant.id

    @property
    def is_somebody_in_line(self) -> bool:
        """Somebody is eligible and memory does not block it."""
        return self._unblocked.least() is not None

    @property
    def num_unserved(self) -> int:
        """Requests that wait, or are paused."""
        return self.num_waiting + len(self.paused)

    # requests come and go

    def enqueue(self, sequence: Sequence, *, in_front: bool = False) -> None:
        """Add a request at the end of its tenant's line, or one whose turn has been at its front."""
        tenant = sequence.tenant
        tenant.waiting[sequence.request_id] = sequence
        if in_front:
            tenant.waiting.move_to_end(sequence.request_id, last=False)
        self.num_waiting += 1
        if tenant.head is not None and tenant.head.request_id in tenant.aside and not self._is_aside_due(tenant):
            self._drop_head(tenant)  # it was the head only because nothing else waited
        self._renew_head(tenant)

    def requeue(self, sequence: Sequence, *, aside: bool = False) -> None:
        """Put a preempted request back where it came from, in front of everything that never ran, or ``aside``."""
        tenant = sequence.tenant
        self._stop(sequence)
        self.num_waiting += 1
        if aside:
            if not tenant.aside:
                tenant.aside_since_units = tenant.figures.served_units
            tenant.aside[sequence.request_id] = sequence
        else:
            tenant.waiting[sequence.request_id] = sequence
            tenant.waiting.move_to_end(sequence.request_id, last=False)
            self._drop_head(tenant)
            tenant.head = sequence
        self.refresh(tenant)

    def admit(self, sequence: Sequence) -> None:
        """Move the head to the running ones. Its blocks are allocated already."""
        tenant = sequence.tenant
        was_blocked = self._release(tenant)
        self.advance()
        if was_blocked:
            # While memory blocked it, it stood outside the virtual time; that must not become credit.
            self._lift(tenant)
        tenant.front_passes += 1  # back to 0 if it was the front itself
        tenant.running[sequence.request_id] = sequence
        self.busy[tenant.id] = tenant
        self.withdraw(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Take a waiting request out of the line."""
        tenant = sequence.tenant
        if tenant.aside.pop(sequence.request_id, None) is not None:
            tenant.aside_since_units = tenant.figures.served_units
        else:
            if next(iter(tenant.waiting)) == sequence.request_id:
                tenant.front_passes = 0
            del tenant.waiting[sequence.request_id]
        self.num_waiting -= 1
        if tenant.head is sequence:
            self._drop_head(tenant)
        self._renew_head(tenant)

    def finish(self, sequence: Sequence) -> None:
        """Forget a running request whose blocks were released."""
        self._stop(sequence)
        sequence.tenant.note_output(sequence.num_output_tokens)
        self.refresh(sequence.tenant)

    def note_long(self, sequence: Sequence) -> None:
        """Note that a running request has had its turn: it makes room when another of its tenant finds none."""
        sequence.tenant.long[sequence.request_id] = sequence
        self.refresh(sequence.tenant)

    def pause(self, sequence: Sequence) -> None:
        """Let a running request keep its blocks and do nothing."""
        self.paused[sequence.request_id] = sequence.tenant.paused[sequence.request_id] = sequence

    def resume_next(self, *, at_its_turn: bool) -> bool:
        """Let a paused request go on, of whoever has fewest rows per weight; False if there is none whose turn it is.

        Going on is like being admitted: out of turn, what a tenant has paused would run before those it is ahead of.
        And where nobody is in line, who comes later is held against whoever went on: the virtual time follows.
        """
        paused = [each for each in self.paused.values() if not at_its_turn or self.is_turn(each.tenant)]
        if not paused:
            return False
        sequence = min(paused, key=lambda each: each.tenant.rows_per_weight())
        if not self.is_somebody_in_line:
            self.virtual_time = max(self.virtual_time, sequence.tenant.counter)
        self._resume(sequence)
        return True

    def _resume(self, sequence: Sequence) -> None:
        del self.paused[sequence.request_id], sequence.tenant.paused[sequence.request_id]

    def _stop(self, sequence: Sequence) -> None:
        tenant = sequence.tenant
        if sequence.request_id in self.paused:
            self._resume(sequence)
        del tenant.running[sequence.request_id]
        tenant.long.pop(sequence.request_id, None)
        if not tenant.running:
            del self.busy[tenant.id]

    def _drop_head(self, tenant: TenantQueue) -> None:
        tenant.head = None
        if self._release(tenant):
            self._lift(tenant)

    def _release(self, tenant: TenantQueue) -> bool:
        """Let memory block the tenant no more; False if it did not."""
        if tenant.hold is None:
            return False
        tenant.hold = None
        self._unblocked.add(tenant)
        tenant.in_line_since = self._leads.now()
        return True

    def _lift(self, tenant: TenantQueue) -> None:
        # A little of what it was behind is left to it: who asks for less than its part, now more and now less, would
        # else wait as long as who asks for more.
        tenant.counter = max(tenant.counter, self.virtual_time - self._config.return_credit_units)

    def _renew_head(self, tenant: TenantQueue) -> None:
        if tenant.head is None and tenant.num_waiting:
            tenant.head = self._choose_head(tenant)
        self.refresh(tenant)

    def _choose_head(self, tenant: TenantQueue) -> Sequence:
        """Return the longest cached prefix among the first few, unless the very first was passed often enough.

        A window of fixed size, so that the cost of a step does not grow with the queue. What made room for others goes
        on when nothing else waits, or when its part of the tenant's service is due.
        """
        if tenant.aside and (not tenant.waiting or self._is_aside_due(tenant)):
            return next(iter(tenant.aside.values()))
        window = list(islice(tenant.waiting.values(), self._config.prefix_window))
        front = window[0]
        if front.num_preemptions or tenant.front_passes >= self._config.prefix_max_passes:
            return front
        return max(window, key=self._cached_blocks)

    def _is_aside_due(self, tenant: TenantQueue) -> bool:
        """Say whether the first that is aside has waited for its part of the tenant's service, while others went on."""
        front = next(iter(tenant.aside.values()))
        turn_units = self._config.output_weight * max(tenant.usual_output_tokens, front.num_tokens)
        return self._config.long_share * (tenant.figures.served_units - tenant.aside_since_units) >= turn_units

    def sitting_out(self, step_number: int) -> set[str]:
        """Return which long generations sit this step out, beside many others of their tenant: all but one in so many.

        Each row makes a step longer for all. Not while anybody else waits: the bound counts on all sequences of a
        tenant growing together since its counter was the virtual time, which therefore follows it here.
        """
        found: set[str] = set()
        if step_number % round(1 / min(1.0, self._config.long_share)) == 0:
            return found
        for tenant in self.busy.values():
            if not tenant.long or self.num_unserved > tenant.num_unserved:
                continue
            long = tenant.long.keys() - tenant.paused.keys()
            if long and tenant.num_rows - len(long) >= self._config.long_beside_rows:
                found |= long
                self.virtual_time = max(self.virtual_time, tenant.counter)
        return found

    # counters

    def refresh(self, tenant: TenantQueue) -> None:
        """Look again whether ``tenant`` is eligible. To be called on every event that may change it.

        On every change from not eligible to eligible the counter is lifted to the virtual time, but for a credit of a
        few steps: nobody saves up turns while away. It must be done event by event; a sample per step misses a head
        that left and one that came within the step, and the credit it leaves is unbounded.
        """
        eligible = tenant.head is not None and self._passes_cap(tenant.head)
        if eligible != tenant.eligible:
            self.note_gap(tenant)
            tenant.eligible = eligible
            tenant.hold = None
            if eligible:
                self._lift(tenant)
                tenant.in_line_since = self._leads.now()
                self._eligible.add(tenant)
                self._unblocked.add(tenant)
                self._in_line.add(tenant)
        self._note_cause(tenant)

    def _note_cause(self, tenant: TenantQueue) -> None:
        cause = None
        if tenant.head is not None:
            cause = (
                Cause.OWN_BUDGET if not tenant.eligible else Cause.FAIR_SHARE if tenant.hold is None else Cause.MEMORY
            )
        if cause is not tenant.waits.cause:
            tenant.waits.hold(cause, self.time)

    def advance(self) -> None:
        """Move the virtual time up to the least counter that could be served. To be called before each dispatch.

        Tenants that memory blocks are left out: their counters stand still and would pin it.
        """
        least = self._unblocked.least()
        if least is not None:
            self.virtual_time = max(self.virtual_time, least.counter)

    def settle(self) -> None:
        """Move the virtual time up to every counter, when no request is left: an idle engine owes nobody anything.

        Nobody is in line then, so accounts that were closed meanwhile are let go of.
        """
        self.virtual_time = max([self.virtual_time, *(tenant.counter for tenant in self.tenants.values())])
        for nobody in (self._eligible, self._unblocked, self._in_line):
            nobody.clear()

    def charge(self, tenant: TenantQueue, units: float) -> None:
        """Add service. Nothing is ever taken back, so an aborted request costs what it used."""
        tenant.counter += units / tenant.budget.weight
        tenant.figures.served_units += units

    def is_turn(self, tenant: TenantQueue) -> bool:
        """Say whether it is the tenant's turn, give or take the gap.

        The counter decides the order always; a guarantee only lets its owner take blocks back at its turn. If whoever
        is under its guarantee went first, a tenant of tiny requests would take all of the compute.
        """
        least = self._eligible.least()
        return least is None or tenant.counter <= least.counter + self._config.turn_gap_units

    def row_giver(self, tenant: TenantQueue) -> Sequence | None:
        """Return which sequence of another leaves its row to ``tenant``, whose turn it must be; None for none."""
        if len(self.paused) >= self._config.pause_limit or not self.is_turn(tenant):
            return None
        return row_giver(tenant, self.busy.values(), self._config.turn_gap_units)

    def block(self, tenant: TenantQueue, needed_tokens: int) -> Hold:
        """Note that the head of ``tenant`` found no memory; the line is drawn once per head."""
        if tenant.hold is None:
            self.note_gap(tenant)
            cost = self._config.input_weight * needed_tokens / tenant.budget.weight
            tenant.hold = Hold(self.virtual_time + cost, cost, self._dispatches)
            self._note_cause(tenant)
        return tenant.hold

    def mark_dispatched(self, tenant: TenantQueue) -> None:
        """Note the dispatch, for ties."""
        self._dispatches += 1
        tenant.last_dispatch = self._dispatches

    def add_service(self, tenant: TenantQueue, units: float) -> None:
        """Count service that the tenant received from another replica, up to a debt that is soon worked off."""
        self.advance()
        self._debt_units = self._config.service_debt_units
        owed = min(tenant.counter + units / tenant.budget.weight, self.virtual_time + self._debt_units)
        tenant.counter = max(tenant.counter, owed)

    # how well the promise is kept

    def bound_units(self, tenant: TenantQueue) -> float:
        """Return how far the counter of ``tenant`` may be ahead of others in line (argued in docs/fairness.md).

        With the largest cap that it had since it got ahead: what it was admitted under that, it is still charged for.
        """
        return self._config.bound_units(tenant.lead_cap_blocks, tenant.budget.weight) + self._debt_units

    def watch(self, pending: Mapping[str, float]) -> None:
        """See who is ahead of whom before a step: ``pending`` is what it will charge, by tenant id."""
        served = [(tenant, units) for id_, units in pending.items() if _is_unblocked(tenant := self.tenants[id_])]
        for tenant, _ in served:
            self.note_gap(tenant)
            is_ahead = tenant.counter > self.virtual_time
            tenant.lead_cap_blocks = max(tenant.budget.cap_blocks, tenant.lead_cap_blocks if is_ahead else 0)
        for tenant, units in served:
            self._leads.reach(tenant.counter + units / tenant.budget.weight, self.bound_units(tenant))

    def note_gap(self, tenant: TenantQueue) -> None:
        """Note how far another has got ahead of ``tenant``, before its counter grows or it leaves the line."""
        counter, bound_units = self._leads.since(tenant.in_line_since) if _is_unblocked(tenant) else (0.0, 0.0)
        tenant.figures.note_gap(Gap(max(0.0, counter - tenant.counter), bound_units), self.time.now_s)


def _is_eligible(tenant: TenantQueue) -> bool:
    return tenant.eligible


def _is_unblocked(tenant: TenantQueue) -> bool:
    return tenant.eligible and tenant.hold is None
