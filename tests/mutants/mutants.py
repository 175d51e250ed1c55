"""Known faults of fair scheduling: what each is, how it is put back into the engine, and the test that must see it.

Each was made by somebody, in a published rule, in another engine or in an earlier one of ours. An edit replaces text
that is there exactly once, so that a fault which no longer applies is noticed and not quietly skipped.
"""

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_ENGINE = "dataplane/engine/"
_TESTS = "tests/engine/"


@dataclass(frozen=True)
class Edit:
    """A replacement in one file of the engine."""

    file: str
    old: str
    new: str

    @property
    def path(self) -> str:
        """Where it is, from the root of the repository."""
        return _ENGINE + self.file

    def applied(self, text: str) -> str:
        """Return the file's ``text`` with the fault in it.

        Raises:
            ValueError: what is to be replaced is not there exactly once.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path} has {text.count(self.old)} times, and should have once: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Attributes:
        name: in few words.
        edits: what puts it back.
        file, test: what must fail by an assertion.
    """

    name: str
    edits: tuple[Edit, ...]
    file: str
    test: str

    @property
    def node(self) -> str:
        """The test as pytest names it."""
        return f"{_TESTS}{self.file}::{self.test}"


_LIFT = "                self._lift(tenant)\n                tenant.in_line_since"
_ADMITS = "        return tenant.counter < self.line and (tenant.since <= self.since or self.newcomers_left > 0)\n"

MUTANTS = (
    Mutant(
        "no lift where the line is empty",
        (
            Edit(
                "fair_queue.py",
                _LIFT,
                "                if any(each is not tenant for each in self._eligible):\n"
                "                    self._lift(tenant)\n                tenant.in_line_since",
            ),
        ),
        "test_fair_queue.py",
        "test_who_comes_to_an_empty_line_is_lifted_as_well",
    ),
    Mutant(
        "a running request counts as waiting: no lift beside one",
        (
            Edit(
                "fair_queue.py",
                _LIFT,
                "                if not tenant.running:\n                    self._lift(tenant)\n"
                "                tenant.in_line_since",
            ),
        ),
        "test_fair_queue.py",
        "test_who_only_runs_is_not_eligible_and_is_lifted_when_it_asks_again",
    ),
    Mutant(
        "lift by a sample at the beginning of each step",
        (
            Edit(
                "fair_queue.py",
                "        self._dispatches = 0\n",
                "        self._dispatches = 0\n        self.sampled: set[str] = set()\n",
            ),
            Edit(
                "fair_queue.py",
                _LIFT,
                "                if tenant.id not in self.sampled:\n                    self._lift(tenant)\n"
                "                tenant.in_line_since",
            ),
            Edit(
                "scheduler.py",
                "        self.step_number += 1\n",
                "        self.step_number += 1\n"
                "        self.queue.sampled = {tenant.id for tenant in self.queue.eligible()}\n",
            ),
        ),
        "test_fairness.py",
        "test_a_tiny_request_in_each_step_saves_up_no_turns",
    ),
    Mutant(
        "tenants that their cap blocks inside the virtual time",
        (
            Edit(
                "fair_queue.py",
                "        eligible = tenant.head is not None and self._passes_cap(tenant.head)\n",
                "        eligible = tenant.head is not None\n",
            ),
        ),
        "test_fair_queue.py",
        "test_a_tenant_blocked_by_its_cap_does_not_pin_the_virtual_time",
    ),
    Mutant(
        "a guarantee that changes the order",
        (
            Edit(
                "fair_queue.py",
                "        return tenant.counter + pending_units",
                "        first = 1e9 * (tenant.budget.excess_blocks < 0)\n"
                "        return tenant.counter - first + pending_units",
            ),
        ),
        "test_fairness.py",
        "test_a_guarantee_buys_memory_and_no_compute",
    ),
    Mutant(
        "what passes a blocked head is counted in steps",
        (
            Edit(
                "tenant_queue.py",
                "    since: int\n\n    def admits",
                "    since: int\n    steps: int = 32\n\n    def admits",
            ),
            Edit("tenant_queue.py", _ADMITS, "        return self.steps > 0\n"),
            Edit(
                "fair_queue.py",
                "        return tenant.hold\n",
                "        tenant.hold.steps -= 1\n        return tenant.hold\n",
            ),
        ),
        "test_fair_queue.py",
        "test_others_pass_a_blocked_head_up_to_one_line_for_all",
    ),
    Mutant(
        "caches of tenants within their guarantee are spared",
        (
            Edit(
                "block_pool.py",
                "        if owner.owned_blocks + count > owner.cap_blocks or count > self.evictable_blocks:\n",
                "        within = [each for each in self._caching if each.held_blocks <= each.guarantee_blocks]\n"
                "        spared = sum(each.cached_blocks for each in within if each is not owner)\n"
                "        if owner.owned_blocks + count > owner.cap_blocks or count > self.evictable_blocks - spared:\n",
            ),
        ),
        "test_fairness.py",
        "test_an_idle_tenants_cache_that_fills_the_pool_is_reclaimed",
    ),
    Mutant(
        "a head that does not fit blocks everybody",
        (Edit("tenant_queue.py", _ADMITS, "        return False\n"),),
        "test_fair_queue.py",
        "test_others_pass_a_blocked_head_up_to_one_line_for_all",
    ),
    Mutant(
        "the first token, which the prefill gives, is not charged",
        (
            Edit(
                "scheduler.py",
                "            units += self._config.output_weight\n",
                "            units += self._config.output_weight * (start >= sequence.num_prompt_tokens)\n",
            ),
        ),
        "test_engine_requests.py",
        "test_the_figures_add_up",
    ),
    Mutant(
        "the whole batch is charged when one of it ends",
        (
            Edit(
                "scheduler.py",
                "        self.queue.charge(sequence.tenant, units)\n",
                "        self._owed[sequence.request_id] = self._owed.get(sequence.request_id, 0.0) + units\n",
            ),
            Edit(
                "scheduler.py",
                "        self.step_number = 0\n",
                "        self.step_number = 0\n        self._owed: dict[str, float] = {}\n",
            ),
            Edit(
                "scheduler.py",
                "        if sequence.is_running:\n            sequence.table.deallocate(self._pool)\n",
                "        for each in [sequence, *self.running.values()]:\n"
                "            self.queue.charge(each.tenant, self._owed.pop(each.request_id, 0.0))\n"
                "        if sequence.is_running:\n            sequence.table.deallocate(self._pool)\n",
            ),
        ),
        "test_engine_requests.py",
        "test_a_step_is_charged_when_it_is_done_and_nothing_is_left_for_the_end",
    ),
    Mutant(
        "accounts that are never forgotten",
        (
            Edit(
                "fair_queue.py",
                "        return tenant.is_idle and ",
                "        return False and ",
            ),
        ),
        "test_engine_requests.py",
        "test_unlisted_tenants_are_forgotten_when_nothing_of_them_is_left",
    ),
    Mutant(
        "service of other replicas counted without an end",
        (
            Edit(
                "fair_queue.py",
                "self.virtual_time + self._debt_units)",
                "math.inf)",
            ),
            Edit("fair_queue.py", "from itertools import islice\n", "import math\nfrom itertools import islice\n"),
        ),
        "test_engine_requests.py",
        "test_service_elsewhere_is_a_number_of_a_tenant",
    ),
    Mutant(
        "a long generation goes on before those it made room for",
        (
            Edit(
                "scheduler.py",
                "        self.queue.requeue(sequence, aside=cause is PreemptionCause.OWN)\n",
                "        self.queue.requeue(sequence)\n",
            ),
        ),
        "test_long_generations.py",
        "test_who_made_room_goes_on_in_time_though_most_of_it_is_in_the_cache",
    ),
    Mutant(
        "steps that long generations sit out become a lead over who comes later",
        (
            Edit(
                "fair_queue.py",
                "                found |= long\n"
                "                self.virtual_time = max(self.virtual_time, tenant.counter)\n",
                "                found |= long\n",
            ),
        ),
        "test_long_generations.py",
        "test_who_comes_after_steps_that_were_sat_out_is_not_behind_by_what_was_served_in_them",
    ),
    Mutant(
        "what goes on while nobody is in line becomes a lead over who comes later",
        (
            Edit(
                "fair_queue.py",
                "        if not self.is_somebody_in_line:\n"
                "            self.virtual_time = max(self.virtual_time, sequence.tenant.counter)\n",
                "",
            ),
        ),
        "test_rows.py",
        "test_who_comes_after_a_paused_one_went_on_is_behind_by_no_more_than_what_it_then_took",
    ),
    Mutant(
        "blocks that victims share are never freed: one within its guarantee may be next",
        (
            Edit(
                "preemption.py",
                "    return sum(block.ref_count == let_go[block.id] for block in victim.table.blocks)\n",
                "    return sum(block.ref_count == 1 for block in victim.table.blocks)\n",
            ),
        ),
        "test_preemption.py",
        "test_a_block_that_victims_share_is_freed_by_the_last_of_them",
    ),
    Mutant(
        "a backlog told by rows: long prompts hold few",
        (
            Edit(
                "scheduler.py",
                "tenants[id_].counter < tenant.counter",
                "tenants[id_].rows_per_weight() < tenant.rows_per_weight()",
            ),
        ),
        "test_rows.py",
        "test_the_prompts_of_a_backlog_leave_steps_short_while_another_is_served_as_it_comes",
    ),
    Mutant(
        "a burst of who is owed service taken for a backlog",
        (
            Edit(
                "scheduler.py",
                "        if is_burst or tenant.counter < self.queue.virtual_time:\n",
                "        if is_burst:\n",
            ),
        ),
        "test_rows.py",
        "test_a_burst_of_a_tenant_that_is_owed_service_is_not_taken_for_a_backlog",
    ),
    Mutant(
        "accounts closed with their credit: who comes and goes is owed nothing when it is back",
        (
            Edit(
                "fair_queue.py",
                "        would_find = self.virtual_time - self._config.return_credit_units < tenant.counter",
                "        would_find = self.virtual_time < tenant.counter",
            ),
        ),
        "test_fairness.py",
        "test_a_stranger_that_comes_and_goes_keeps_what_it_is_owed",
    ),
    Mutant(
        "rows by number alone: who had much keeps what it holds beside who has as many",
        (
            Edit(
                "preemption.py",
                "    giver = max(spare, key=lambda tenant: tenant.counter, default=newcomer)\n",
                "    giver = newcomer\n",
            ),
        ),
        "test_rows.py",
        "test_who_had_less_takes_a_row_of_who_had_more_though_it_holds_as_many",
    ),
)
