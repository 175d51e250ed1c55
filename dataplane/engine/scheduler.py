"""The scheduler: which sequences compute how many tokens in the next step, and who makes room for whom.

A step fills one token budget: sequences with a single token to compute first (decoding), then prefill chunks and
admissions together, least served tenant first. With work pending a step always advances a token, preempts, or the
engine has refused with a reason; nothing here can stall. Only where all that is pending waits for more of a leased cap
it does nothing: the lease will come, or a deadline.
"""

from collections import Counter
from collections.abc import Callable

from dataplane.contracts import probes
from dataplane.contracts.generation import PreemptionCause
from dataplane.engine.block_pool import BlockPool
from dataplane.engine.config import EngineConfig
from dataplane.engine.fair_queue import FairQueue
from dataplane.engine.preemption import ReclaimCredit, freed_blocks, growth_victim, reclaim_victims
from dataplane.engine.prefix_cache import PrefixCache
from dataplane.engine.prices import Prices
from dataplane.engine.sequence import Sequence
from dataplane.engine.step import Need, Step, Turns
from dataplane.engine.tenant_queue import TenantQueue

_FOR_MEMORY = frozenset({PreemptionCause.GROWTH, PreemptionCause.RECLAIM})


class Scheduler:
    """Moves sequences between waiting and running, and blocks with them.

    Args:
        config: sizes and policy.
        pool: the blocks.
        prefix_cache: finds what is computed already.
        queue: whose turn it is; only a simulation compares with another.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        queue: Callable[..., FairQueue] = FairQueue,
    ) -> None:
        self.queue = queue(config, self._passes_cap, lambda waiting: len(prefix_cache.match(waiting)))
        self.running: dict[str, Sequence] = {}
        self.step_number = 0
        self.num_preemptions = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.lost_hits_tokens = 0
        self._config = config
        self._pool = pool
        self._prefix_cache = prefix_cache
        self._prices = Prices(config)
        self._credit = ReclaimCredit(config.reclaim_recompute_share)
        self._watermark_blocks = int(config.num_blocks * config.watermark_fraction)
        # Who was last admitted with nothing left to wait: in which step, and how many tokens of its prompt to compute.
        self._served_at_once: dict[str, tuple[int, int]] = {}
        self._gave_way: Counter[str] = Counter()  # of steps in a row, by tenant

    # one step

    def schedule(self) -> Step:
        """Choose the rows of the next step and give them their blocks."""
        self.step_number += 1
        step = Step(self._config.step_token_budget)
        self._resume(at_its_turn=True)
        prefills = self._schedule_decodes(step)
        self._schedule_prefills(step, prefills)
        self._give_way(step)
        if step.tokens_left > 0 and not (step.chunks and self.queue.is_somebody_in_line):
            self._resume(at_its_turn=False)  # rows that are left are nobody's
        self.queue.time.slots_full = self._is_full
        self.queue.watch(step.pending)
        return step

    def commit(self, sequence: Sequence, num_tokens: int, token_id: int | None) -> None:
        """Book a computed chunk: charge its tenant, index the blocks it filled, append the sampled token."""
        start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + num_tokens
        units = self._prices.prompt_units(sequence, end) + self._prices.again_units(sequence, end)
        sequence.charged_tokens = max(sequence.charged_tokens, min(end, sequence.num_prompt_tokens))
        recomputed_tokens = 0
        if sequence.is_recomputing:
            recomputed_tokens = min(end, sequence.high_water_tokens) - start
            if sequence.reclaimed_by != sequence.tenant.id:
                self._credit.spend(sequence.reclaimed_by, recomputed_tokens)
            if end >= sequence.high_water_tokens:
                sequence.running_since_step = self.step_number
        self._credit.work_tokens += num_tokens - recomputed_tokens
        sequence.num_computed_tokens = end
        sequence.high_water_tokens = max(sequence.high_water_tokens, end)
        if self._prefix_cache.register(sequence, start):
            self.queue.refresh(sequence.tenant)  # its head may share them, and so fit its cap
        if token_id is not None:
            sequence.token_ids.append(token_id)
            units += self._config.output_weight
            if sequence.num_tokens == sequence.turn_end_tokens:
                self.queue.note_long(sequence)
        self.queue.charge(sequence.tenant, units)

    def deallocate(self, sequence: Sequence) -> None:
        """End a sequence, running or waiting; its blocks are free or cached at once."""
        if sequence.is_running:
            sequence.table.deallocate(self._pool)
            del self.running[sequence.request_id]
            self.queue.finish(sequence)
        else:
            self.queue.withdraw(sequence)

    def apply_shares(self) -> None:
        """After shares were changed: preempt each tenant's newest and evict its cache until it is within its cap."""
        tenants = list(self.queue.tenants.values())
        size = self._config.block_size
        self._credit.set_guarantees({tenant.id: tenant.budget.guarantee_blocks * size for tenant in tenants})
        for tenant in tenants:
            while tenant.budget.owned_blocks > tenant.budget.cap_blocks:
                self._preempt(tenant.newest_running())
            self._pool.trim(tenant.budget)
            self.queue.refresh(tenant)

    # decoding, growth and preemption

    def _schedule_decodes(self, step: Step) -> dict[str, list[Sequence]]:
        """Schedule the rows of one token, but for those that sit out; return the other running ones by tenant."""
        prefills: dict[str, list[Sequence]] = {}
        sitting_out = self.queue.sitting_out(self.step_number)
        for sequence in list(self.running.values()):
            if not self._computes(sequence):
                continue  # the growth of one before it may have preempted it
            if sequence.num_uncomputed_tokens > 1:
                prefills.setdefault(sequence.tenant.id, []).append(sequence)
            elif sequence.request_id not in sitting_out and self._grow(sequence, step):
                self._schedule_chunk(sequence, 1, step)
        return prefills

    def _grow(self, sequence: Sequence, step: Step) -> bool:
        """See that ``sequence`` has a block for its next token, whoever must make room: running out is collective."""
        if self._config.blocks_for(sequence.num_tokens) <= len(sequence.table):
            return True
        while not sequence.table.append(self._pool, sequence.tenant.budget):
            victim = growth_victim(sequence, self.queue.busy.values())
            self._preempt(victim, step, PreemptionCause.GROWTH, sequence.tenant)
            if victim is sequence:
                return False
        self.queue.refresh(sequence.tenant)
        return True

    def _preempt(
        self,
        sequence: Sequence,
        step: Step | None = None,
        cause: PreemptionCause = PreemptionCause.SHARES,
        taker: TenantQueue | None = None,
    ) -> None:
        """Send a running sequence back to the queue: its tokens stay, its KV is computed again.

        ``taker`` is who gets the room, unless it is nobody in particular.
        """
        tenant = sequence.tenant
        tenant.figures.preemptions[cause] += 1
        if cause in _FOR_MEMORY and taker is not tenant and tenant.budget.excess_blocks <= 0:
            tenant.figures.within_guarantee_preemptions += 1
        if step is not None:
            self._unschedule(sequence, step)
            step.closed = True  # an admission now would take the room that was just made
        sequence.timeline.preempt(self.queue.time, len(sequence.table))
        sequence.table.deallocate(self._pool)
        sequence.num_computed_tokens = 0
        sequence.reclaimed_by = ""
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        del self.running[sequence.request_id]
        self.queue.requeue(sequence, aside=cause is PreemptionCause.OWN)

    def _schedule_chunk(self, sequence: Sequence, num_tokens: int, step: Step) -> None:
        step.chunks[sequence] = num_tokens
        step.tokens_left -= num_tokens
        units = self._prices.chunk_units(sequence, num_tokens)
        step.pending[sequence.tenant.id] = step.pending.get(sequence.tenant.id, 0.0) + units

    def _unschedule(self, sequence: Sequence, step: Step) -> None:
        num_tokens = step.chunks.pop(sequence, 0)
        if num_tokens:
            step.tokens_left += num_tokens
            step.pending[sequence.tenant.id] -= self._prices.chunk_units(sequence, num_tokens)

    def _resume(self, *, at_its_turn: bool) -> None:
        while not self._is_full and self.queue.resume_next(at_its_turn=at_its_turn):
            pass

    # prefill and admission

    def _schedule_prefills(self, step: Step, prefills: dict[str, list[Sequence]]) -> None:
        """Fill the rest of the budget: running prefills and admissions together, least served tenant first."""
        recompute_left = step.tokens_left // 2
        decode_tokens = self._config.step_token_budget - step.tokens_left
        limited: list[Sequence] = []
        turns = Turns(step, prefills, self.queue)
        while step.tokens_left > 0 and (tenant := turns.next()) is not None:
            num_behind = tenant.num_waiting - (not prefills.get(tenant.id))
            tokens_left = self._tokens_left(step, decode_tokens, tenant, num_behind)
            if tokens_left <= 0:
                continue
            sequence = self._next_prefill(tenant, prefills)
            if sequence is not None:
                self.queue.advance()
            else:
                sequence = self._admit_head(tenant, step)
            if sequence is None:
                continue
            self.queue.mark_dispatched(tenant)
            num_tokens = self._chunk_tokens(sequence, tokens_left)
            if sequence.is_recomputing:
                # Recompute is free, so it would never lose its turn: it gets half of what decoding leaves, and
                # afterwards what nobody else wants.
                num_tokens = min(num_tokens, recompute_left)
                recompute_left -= num_tokens
                limited.append(sequence)
            if num_tokens:
                self._schedule_chunk(sequence, num_tokens, step)
            turns.again(tenant)
        turns.end()
        for sequence in limited:
            self._unschedule(sequence, step)
            tokens_left = self._tokens_left(step, decode_tokens, sequence.tenant, sequence.tenant.num_waiting)
            if self._computes(sequence) and tokens_left > 0:
                self._schedule_chunk(sequence, self._chunk_tokens(sequence, tokens_left), step)

    def _tokens_left(self, step: Step, decode_tokens: int, tenant: TenantQueue, num_behind: int) -> int:
        """Return what prompts of ``tenant`` may still fill: less than all where a backlog keeps steps short."""
        delayed = self._delayed_prompt_tokens(tenant, num_behind)
        if delayed is None:
            return step.tokens_left
        prompt_tokens = self._config.step_token_budget - step.tokens_left - decode_tokens
        return min(step.tokens_left, self._config.backlog_tokens(decode_tokens, delayed) - prompt_tokens)

    def _give_way(self, step: Step) -> None:
        """Take tenants with a backlog out of a step that others' prompts make long without them, a few times in a row.

        Who had most goes first, and somebody always stays: for the last one there are no others.
        """
        tokens: Counter[TenantQueue] = Counter()
        prompt_tokens: Counter[TenantQueue] = Counter()
        for sequence, num_tokens in step.chunks.items():
            tokens[sequence.tenant] += num_tokens
            prompt_tokens[sequence.tenant] += num_tokens if num_tokens > 1 else 0
        before, self._gave_way = self._gave_way, Counter()
        for tenant in sorted(tokens, key=lambda tenant: tenant.counter, reverse=True):
            delayed = self._delayed_prompt_tokens(tenant, tenant.num_waiting)
            has_waited = before[tenant.id] >= self._config.give_way_steps
            if delayed is None or has_waited or prompt_tokens.total() == prompt_tokens[tenant]:
                continue
            if tokens.total() - tokens[tenant] > self._config.backlog_within(delayed):
                del tokens[tenant], prompt_tokens[tenant]
                self._gave_way[tenant.id] = before[tenant.id] + 1
        for sequence in [each for each in step.chunks if each.tenant.id in self._gave_way]:
            self._unschedule(sequence, step)

    def _delayed_prompt_tokens(self, tenant: TenantQueue, num_behind: int) -> int | None:
        """Return how short a prompt of another is that had less and is served as it comes, None where there is none.

        And where ``num_behind`` of its own, which wait anyway, are a burst and no flood: there are none, or the tenant
        is behind the virtual time, which owes it service, or they are few and came of late. Each of those served as
        they come has a burst now and then; in short steps they would not get over it, with more coming meanwhile.
        """
        is_late = self.step_number - tenant.served_at_once_step < self._config.burst_steps
        is_burst = num_behind <= (self._config.burst_requests if is_late else 0)
        if is_burst or tenant.counter < self.queue.virtual_time:
            return None
        since, tenants = self.step_number - self._config.served_at_once_steps, self.queue.tenants
        prompts_tokens = (
            prompt_tokens
            for id_, (step, prompt_tokens) in self._served_at_once.items()
            if step > since and id_ in tenants and tenants[id_].counter < tenant.counter
        )
        return min(prompts_tokens, default=None)

    def _next_prefill(self, tenant: TenantQueue, prefills: dict[str, list[Sequence]]) -> Sequence | None:
        sequences = prefills.get(tenant.id, [])
        while sequences:
            sequence = sequences.pop(0)
            if self._computes(sequence):
                return sequence
        return None

    def _computes(self, sequence: Sequence) -> bool:
        """Say whether it has a row: since the step began it may have been preempted, or paused."""
        return sequence.is_running and sequence.request_id not in self.queue.paused

    def _chunk_tokens(self, sequence: Sequence, tokens_left: int) -> int:
        return min(sequence.num_uncomputed_tokens, tokens_left, self._config.prefill_chunk_tokens or tokens_left)

    def _admit_head(self, tenant: TenantQueue, step: Step) -> Sequence | None:
        """Admit the head of ``tenant`` if there is a row, and memory for its length, by preemption where it may."""
        head = tenant.head
        if step.closed or head is None or not tenant.eligible:
            return None
        if self._make_way(head, step):
            return head
        step.miss()
        return None

    def _make_way(self, head: Sequence, step: Step) -> bool:
        tenant, full = head.tenant, self._is_full
        giver = self.queue.row_giver(tenant) if full else None
        if full and giver is None and not tenant.long:
            # Who has no row finds none: nor do those behind it, unless they weigh more.
            step.closed = not tenant.num_rows
            return False
        if any(not hold.admits(tenant) for hold in step.holds):
            return False
        need, held = self._need(head), False
        cause = PreemptionCause.RECLAIM
        victims: list[Sequence] | None = None
        if not full or giver is not None:
            victims = self._memory_victims(head, need, step)
            held = victims is None
        if victims is None:
            cause, victims = PreemptionCause.OWN, self._own_victims(head, need, step, rowless=full and giver is None)
        if victims is None:
            if held:
                self._hold_for(head, need, step)
            return False
        for victim in victims:
            self._preempt(victim, step, cause, tenant)
            victim.reclaimed_by = tenant.id
        if giver is not None and self._is_full:
            self._unschedule(giver, step)
            self.queue.pause(giver)
            giver.tenant.figures.pauses += 1
        # Who makes others recompute pays at once: charged by the chunk, it could abort and do it again for nothing.
        return self._admit(head, need, prepaid=bool(victims) and cause is not PreemptionCause.OWN, step=step)

    def _may_reclaim(self, tenant: TenantQueue) -> bool:
        guarantee_tokens = tenant.budget.guarantee_blocks * self._config.block_size
        return self.queue.is_turn(tenant) and self._credit.has(tenant.id, guarantee_tokens)

    def _memory_victims(self, head: Sequence, need: Need, step: Step) -> list[Sequence] | None:
        """Return whom to preempt for the memory of ``head``: nobody, some, or None when it must wait."""
        shortfall_blocks = self._shortfall_blocks(head, need, step)
        if shortfall_blocks <= 0:
            return []
        if not self._within_guarantee(head.tenant, need) or not self._may_reclaim(head.tenant):
            return None
        busy = self.queue.busy.values()
        return reclaim_victims(shortfall_blocks, busy, self.step_number, self._config.min_run_steps)

    def _own_victims(self, head: Sequence, need: Need, step: Step, *, rowless: bool) -> list[Sequence] | None:
        """Return which long generations of its own tenant make room for ``head``; None if they cannot.

        One at least: if it lacks no memory, it lacks a row. While all rows are taken others may wait for one, and a
        tenant that goes on with its own must not keep it from those whose turn is before its.
        """
        if rowless and not self.queue.is_turn(head.tenant):
            return None
        shortfall_blocks, let_go = self._shortfall_blocks(head, need, step), need.kept()
        victims: list[Sequence] = []
        for sequence in head.tenant.making_room():
            victims.append(sequence)
            shortfall_blocks -= freed_blocks(sequence, let_go)
            rowless = rowless and sequence.request_id in self.queue.paused
            if shortfall_blocks <= 0 and not rowless:
                return victims
        return None

    def _shortfall_blocks(self, head: Sequence, need: Need, step: Step) -> int:
        """Return how many blocks too few there are for ``head``, in the pool or under its tenant's cap."""
        budget = head.tenant.budget
        left_free = 0
        if not self._within_guarantee(head.tenant, need):
            left_free = step.reserved_blocks
            if self.running and not head.num_preemptions:
                left_free += self._watermark_blocks
        room_blocks = min(self._pool.evictable_blocks - left_free, budget.cap_blocks - budget.owned_blocks)
        return need.owned_blocks - room_blocks

    def _hold_for(self, head: Sequence, need: Need, step: Step) -> None:
        hold = self.queue.block(head.tenant, head.num_tokens)
        if head.tenant.budget.owned_blocks + need.owned_blocks <= self._config.num_blocks:
            step.holds.append(hold)  # else it waits for blocks of its own tenant: to stop others would only idle
        if self._within_guarantee(head.tenant, need):
            step.reserved_blocks += need.owned_blocks

    def _admit(self, head: Sequence, need: Need, *, prepaid: bool, step: Step) -> bool:
        """Give ``head`` its blocks and move it to the running ones; False if the blocks are not there."""
        tenant = head.tenant
        if not head.table.allocate(self._pool, tenant.budget, need.hits, need.new_blocks):
            return False
        head.prefix_tokens = head.num_computed_tokens = len(need.hits) * self._config.block_size
        head.running_since_step = self.step_number
        head.turn_end_tokens = self._prices.turn_end_tokens(head)
        head.timeline.admit(self.queue.time)
        if head.cached_tokens is None:
            head.cached_tokens = head.prefix_tokens
            if head.tenant.id not in probes.TENANTS:
                self.prefix_queries_tokens += head.num_prompt_tokens
                self.prefix_hits_tokens += head.prefix_tokens
                self.lost_hits_tokens += self._prefix_cache.lost_tokens(head)
            tenant.figures.prefix_queries_tokens += head.num_prompt_tokens
            tenant.figures.prefix_hits_tokens += head.prefix_tokens
        self.running[head.request_id] = head
        for hold in step.holds:
            hold.passed_by(tenant, self._prices.prompt_units(head, head.num_prompt_tokens) / tenant.budget.weight)
        self.queue.admit(head)
        if not tenant.num_waiting and tenant.id not in probes.TENANTS:
            tenant.served_at_once_step = self.step_number
            self._served_at_once.pop(tenant.id, None)
            self._served_at_once[tenant.id] = self.step_number, head.num_uncomputed_tokens
            if len(self._served_at_once) > 2:  # two, for whoever asks is not itself the other
                del self._served_at_once[next(iter(self._served_at_once))]
        if prepaid:
            self.queue.charge(tenant, self._prices.prompt_units(head, head.num_prompt_tokens))
            head.charged_tokens = head.num_prompt_tokens
        return True

    @property
    def num_rows(self) -> int:
        """Sequences that compute: those that run and are not paused."""
        return len(self.running) - len(self.queue.paused)

    @property
    def _is_full(self) -> bool:
        return self.num_rows >= self._config.max_num_seqs

    # what fits

    def _need(self, sequence: Sequence) -> Need:
        hits = self._prefix_cache.match(sequence)
        revived_blocks = sum(block.ref_count == 0 for block in hits)
        return Need(hits, self._config.blocks_for(sequence.num_tokens) - len(hits), revived_blocks)

    def _within_guarantee(self, tenant: TenantQueue, need: Need) -> bool:
        return tenant.budget.excess_blocks + need.owned_blocks <= 0

    def _passes_cap(self, sequence: Sequence) -> bool:
        budget = sequence.tenant.budget
        if budget.cap_blocks == self._config.num_blocks:
            return True  # no cap of its own: what stands in its way is memory, and memory-blocked heads keep their turn
        room_blocks = budget.cap_blocks - budget.owned_blocks
        if self._config.blocks_for(sequence.num_tokens) <= room_blocks:
            return True
        need = self._need(sequence)
        let_go = need.kept()
        own_blocks = sum(freed_blocks(long, let_go) for long in sequence.tenant.making_room())
        return need.owned_blocks <= room_blocks + own_blocks
