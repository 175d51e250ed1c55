"""The engine: takes requests, runs steps, hands back tokens.

Life of a request: ``submit`` checks that it can ever fit and puts it in its tenant's line; the scheduler admits it with
blocks for its length; each step computes a chunk of it; when nothing is left to compute a token is sampled; it ends by
a stop token, by length, by ``abort``, for want of a first token in time or by a failure of its own, and its blocks are
free or cached in that same step. With its first token the other sequences of a request for several join the line, in
front, and find its prompt computed. A preemption sends it back to the line with its tokens kept.
"""

import math
from collections.abc import Callable, Iterable, Mapping

import msgspec

from dataplane.contracts import probes
from dataplane.contracts.catalog import Share
from dataplane.contracts.errors import Code
from dataplane.contracts.generation import EngineDump, EngineLoad, FinishReason, SequenceDelta, Submit, TenantLoad
from dataplane.contracts.leases import NO_LEASES, Lease
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine import execution, intake
from dataplane.engine.accounts import Accounts
from dataplane.engine.block_pool import BlockPool, IntegrityError
from dataplane.engine.config import EngineConfig
from dataplane.engine.deadlines import Deadlines
from dataplane.engine.fair_queue import FairQueue
from dataplane.engine.intake import Refusal
from dataplane.engine.prefix_cache import PrefixCache
from dataplane.engine.runner import Constraint, Row, RowFailure, Runner, Scored
from dataplane.engine.scheduler import Scheduler
from dataplane.engine.sequence import Sequence
from dataplane.engine.tenant_queue import TenantQueue

_PHASES_EVERY_TOKENS = 16


class Engine:
    """Continuous batching over a paged KV pool, fair between tenants. Not thread-safe: one caller drives it.

    Args:
        config: sizes and policy.
        runner: computes rows; owns the KV tensors.
        tenants: shares by tenant id; a tenant not listed has guarantee 0, the pool as cap, weight 1.
        leases: what of them is here, where other replicas hold the rest; a share without a lease is here whole.
        salt_secret: seeds the tenants' cache salts.
        version_digest: content address of the weights.
        eos_token_ids: ids that end a sequence unless it ignores them.
        clock: seconds that never go back, to time the phases of requests. Without one no time passes.
        constrain: makes the constraint of a sequence of a request with a grammar. Without one there are none.
        queue: whose turn it is; only a simulation compares with another.

    Raises:
        ValueError: shares that the pool cannot keep.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tenants: Mapping[str, Share],
        *,
        salt_secret: bytes,
        version_digest: str,
        eos_token_ids: Iterable[int],
        clock: Callable[[], float] = float,
        constrain: Callable[[Submit], Constraint] | None = None,
        queue: Callable[..., FairQueue] = FairQueue,
        leases: Mapping[str, Lease] = NO_LEASES,
    ) -> None:
        self.config = config
        self._runner = runner
        self._eos_token_ids = tuple(eos_token_ids)
        self._pool = BlockPool(config.num_blocks)
        self._prefix_cache = PrefixCache(
            self._pool, config.block_size, salt_secret, version_digest, enabled=config.prefix_cache
        )
        self._scheduler = Scheduler(config, self._pool, self._prefix_cache, queue)
        self._queue = self._scheduler.queue
        self._clock = clock
        self._constrain = constrain
        self._sequences: dict[str, Sequence] = {}
        self._forks: dict[str, Submit] = {}  # by their first sequence, which computes the prompt of the others
        self._deadlines = Deadlines()
        self._refused: list[SequenceDelta] = []  # ended outside a step, to be delivered with the next
        self._accounts = Accounts(config, self._queue)
        self._arrivals = self._prompt_tokens = self._generation_tokens = self._failed_rows = 0
        self.set_tenants(tenants, leases)

    # requests

    def submit(self, request: Submit) -> None:
        """Queue a request.

        Raises:
            Refusal: it is malformed, can never fit, or its tenant's queue is full.
        """
        for sequence_id in request.sequence_ids():
            if sequence_id in self._sequences:
                raise Refusal(Code.INVALID_REQUEST, f"request id {sequence_id} is in use")
        intake.check(request, self.config)
        tenant = self._accounts.of(request.tenant_id)
        intake.check_room(request, self.config, tenant)
        self._arrivals += 1
        self._look_at_the_clock()
        self._enqueue(request, request.request_id, request.sampling, self._arrivals)
        if request.n > 1:
            self._forks[request.request_id] = request

    def _enqueue(
        self, request: Submit, sequence_id: str, sampling: SamplingParams, arrival: int, *, in_front: bool = False
    ) -> None:
        stop_token_ids = (
            sampling.stop_token_ids if sampling.ignore_eos else self._eos_token_ids + sampling.stop_token_ids
        )
        sequence = Sequence(
            sequence_id,
            self._accounts.of(request.tenant_id),
            request.prompt_token_ids,
            sampling=sampling,
            stop_token_ids=stop_token_ids,
            arrival=arrival,
            time=self._queue.time,
        )
        if sampling.grammar and self._constrain is not None:
            sequence.constraint = self._constrain(request)
        if request.queue_wait_s is not None:
            self._deadlines.add(sequence, self._queue.time.now_s + request.queue_wait_s)
        self._sequences[sequence_id] = sequence
        self._queue.enqueue(sequence, in_front=in_front)

    def _fork(self, first: Sequence) -> None:
        """Queue the other sequences of a request whose prompt ``first`` has computed; they share its full blocks."""
        request = self._forks.pop(first.request_id, None)
        if request is None:
            return
        for choice, sequence_id in reversed(list(enumerate(request.sequence_ids()))[1:]):
            sampling = msgspec.structs.replace(request.sampling, choice=choice, score_prompt=False)
            self._enqueue(request, sequence_id, sampling, first.arrival, in_front=True)

    def abort(self, request_id: str) -> bool:
        """End a request now, whatever it is doing; its blocks are free on return and no delta follows.

        Returns:
            False if there is no such request (any more).
        """
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        self._forks.pop(request_id, None)
        self._look_at_the_clock()
        self._let_go(sequence)
        return True

    def _let_go(self, sequence: Sequence) -> None:
        self._scheduler.deallocate(sequence)
        if sequence.constraint is not None:
            sequence.constraint.close()

    @property
    def has_work(self) -> bool:
        """Say whether :meth:`step` has something to do or to deliver."""
        return bool(self._sequences or self._refused)

    def step(self) -> list[SequenceDelta]:
        """Run one step and return what it produced: new tokens and ends, at most one delta a sequence.

        A token that stopped its sequence is the last of ``token_ids``. A sequence that failed ends with ERROR, a code
        and a sentence. With work pending a step advances, preempts or ends at least one sequence, but
        where all of it waits for more of a leased cap.

        Raises:
            IntegrityError: the engine fell idle and a block is missing.
        """
        deltas, self._refused = self._refused, []
        self._look_at_the_clock()
        deltas += self._end_overdue()
        chunks = self._scheduler.schedule().chunks
        rows = [self._row(sequence, num_tokens) for sequence, num_tokens in chunks.items()]
        results = execution.execute(self._runner, rows)
        self._look_at_the_clock()
        for (sequence, num_tokens), result in zip(chunks.items(), results, strict=True):
            timeline = sequence.timeline
            timeline.num_steps += 1
            timeline.num_rows += len(rows)
            if isinstance(result, RowFailure):
                self._failed_rows += 1
                deltas.append(self._end(sequence, FinishReason.ERROR, result.code, result.message))
            elif (delta := self._take(sequence, num_tokens, result)) is not None:
                deltas.append(delta)
        self._accounts.forget_one()
        if not self._sequences:
            self._settle()
        return deltas

    def _look_at_the_clock(self) -> None:
        self._queue.time.advance(self._clock())

    def _settle(self) -> None:
        owned_blocks = self.config.num_blocks - self._pool.evictable_blocks
        if owned_blocks:
            raise IntegrityError(f"idle with {owned_blocks} blocks owned")
        self._queue.settle()

    # rows and results

    def _row(self, sequence: Sequence, num_tokens: int) -> Row:
        start = sequence.num_computed_tokens
        output_index = sequence.num_output_tokens
        return Row(
            request_id=sequence.request_id,
            token_ids=sequence.token_ids[start : start + num_tokens],
            position=start,
            block_table=sequence.table.block_ids,
            sample=num_tokens == sequence.num_uncomputed_tokens,
            sampling=sequence.sampling,
            output_index=output_index,
            ban_token_ids=sequence.stop_token_ids if output_index < sequence.sampling.min_tokens else (),
            counts=sequence.counts,
            score_token_ids=self._unscored(sequence, start, start + num_tokens) if sequence.needs_scores else (),
            constraint=sequence.constraint,
        )

    def _unscored(self, sequence: Sequence, start: int, end: int) -> list[int]:
        """Return the tokens of the prompt that stand behind positions ``start`` to ``end``."""
        return sequence.token_ids[start + 1 : min(end + 1, sequence.num_prompt_tokens)]

    def _take(self, sequence: Sequence, num_tokens: int, result: int | Scored | None) -> SequenceDelta | None:
        """Book what a row computed; return what its caller is told."""
        if not isinstance(result, Scored):
            return self._commit(sequence, num_tokens, result)
        scores = result.scores
        if sequence.needs_scores:
            end = min(sequence.num_computed_tokens + num_tokens + 1, sequence.num_prompt_tokens)
            # After a preemption within the prompt the first of them were handed out before.
            scores = scores[max(0, sequence.num_scored_tokens - sequence.num_computed_tokens - 1) :]
            sequence.num_scored_tokens = max(sequence.num_scored_tokens, end)
        delta = self._commit(sequence, num_tokens, result.token_id)
        if delta is None:
            return SequenceDelta(sequence.request_id, [], scores=scores) if scores else None
        return msgspec.structs.replace(delta, scores=scores)

    def _commit(self, sequence: Sequence, num_tokens: int, token_id: int | None) -> SequenceDelta | None:
        self._scheduler.commit(sequence, num_tokens, token_id)
        if token_id is None:
            return None
        if sequence.counts is not None:
            sequence.counts.add(token_id)
        counted = sequence.tenant.id not in probes.TENANTS
        self._generation_tokens += counted
        num_output_tokens, sampling = sequence.num_output_tokens, sequence.sampling
        if num_output_tokens == 1:
            self._prompt_tokens += sequence.num_prompt_tokens if counted and not sampling.choice else 0
            sequence.timeline.first_token(self._queue.time)
            self._fork(sequence)
        if token_id in sequence.stop_token_ids and num_output_tokens >= sampling.min_tokens:
            return self._end(sequence, FinishReason.STOP, token_ids=[token_id])
        if num_output_tokens >= sampling.max_tokens:
            return self._end(sequence, FinishReason.LENGTH, token_ids=[token_id])
        if self._outgrew_cap(sequence):
            message = intake.too_large(sequence.num_tokens, self.config, sequence.tenant.budget)
            return self._end(sequence, FinishReason.ERROR, Code.REQUEST_TOO_LARGE_FOR_BUDGET, message, [token_id])
        if sequence.constraint is not None:
            sequence.constraint.accept(token_id)
        phases = sequence.phases(self._queue.time) if num_output_tokens % _PHASES_EVERY_TOKENS == 1 else None
        return SequenceDelta(sequence.request_id, [token_id], cached_tokens=sequence.cached_tokens or 0, phases=phases)

    def _outgrew_cap(self, sequence: Sequence) -> bool:
        """Say whether it can never run again: possible only where the cap was lowered after it was accepted."""
        return self.config.blocks_for(sequence.num_tokens) > sequence.tenant.budget.limit_blocks

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        code: Code | None = None,
        message: str = "",
        token_ids: list[int] | None = None,
    ) -> SequenceDelta:
        phases = sequence.phases(self._queue.time)
        self._let_go(sequence)
        del self._sequences[sequence.request_id]
        self._forks.pop(sequence.request_id, None)
        return SequenceDelta(
            sequence.request_id,
            token_ids or [],
            finish_reason=reason,
            error_code=code.code if code else "",
            error_message=message,
            cached_tokens=sequence.cached_tokens or 0,
            phases=phases,
        )

    def _end_overdue(self) -> list[SequenceDelta]:
        """End what has waited for its first token as long as it may."""
        time = self._queue.time
        return [
            self._end(sequence, FinishReason.ERROR, Code.QUEUE_TIMEOUT, intake.waited_too_long(sequence.phases(time)))
            for sequence in self._deadlines.overdue(self._sequences, time.now_s)
        ]

    def clear_cache(self) -> None:
        """Forget all cached prefixes: the pool's memory is about to be given back.

        Raises:
            RuntimeError: requests are running or waiting.
        """
        if self._sequences:
            raise RuntimeError(f"{len(self._sequences)} requests are running or waiting")
        self._pool.clear_cache()

    # tenants

    def set_tenants(self, tenants: Mapping[str, Share], leases: Mapping[str, Lease] = NO_LEASES) -> None:
        """Replace all shares, mid-flight too. A tenant above a lowered cap is preempted down to it, newest first.

        What the share as a whole can no longer hold ends with an error in the next step; what only the ``leases`` of
        this engine cannot hold waits until they are raised, and meanwhile a step may do nothing. With another epoch a
        tenant's cache is forgotten at once.

        Raises:
            ValueError: shares that the pool cannot keep; nothing is changed.
        """
        self._accounts.replace(tenants, leases)
        self._look_at_the_clock()
        for tenant in self._queue.tenants.values():
            share = self._accounts.share_of(tenant)
            if share.cache_epoch != tenant.budget.cache_epoch:
                self._prefix_cache.begin_epoch(tenant, share.cache_epoch)
            if self._accounts.renew(tenant):  # leases move often: they must not cost a walk over all lines
                self._end_outgrown(tenant)
        self._scheduler.apply_shares()

    def _end_outgrown(self, tenant: TenantQueue) -> None:
        for sequence in [*tenant.running.values(), *tenant.queued()]:
            if self._outgrew_cap(sequence):
                message = intake.too_large(sequence.num_tokens, self.config, tenant.budget)
                code = Code.REQUEST_TOO_LARGE_FOR_BUDGET
                self._refused.append(self._end(sequence, FinishReason.ERROR, code, message))

    def add_service(self, units: Mapping[str, float]) -> None:
        """Count what other replicas served tenants against their turns here, so that they are fair together.

        A counter is raised by no more than leads to :attr:`EngineConfig.service_debt_units` above the virtual time.

        Args:
            units: service units (not divided by the weight) by tenant id.

        Raises:
            ValueError: a number that is negative or none; nothing is changed.
        """
        for tenant_id, served_units in units.items():
            if not 0 <= served_units < math.inf:
                raise ValueError(f"tenant {tenant_id}: {served_units} units of service elsewhere; it must be 0 or more")
        for tenant_id, served_units in units.items():
            self._queue.add_service(self._accounts.of(tenant_id), served_units)

    # figures

    def load(self) -> EngineLoad:
        """Return the engine's figures. Blocks are those of everybody, all else is without what only probes."""
        pool, scheduler = self._pool, self._scheduler
        made_up = [self._queue.tenants[id_] for id_ in probes.TENANTS if id_ in self._queue.tenants]
        return EngineLoad(
            step=scheduler.step_number,
            num_running=scheduler.num_rows - sum(tenant.num_rows for tenant in made_up),
            num_waiting=self._queue.num_unserved - sum(tenant.num_unserved for tenant in made_up),
            total_blocks=self.config.num_blocks,
            free_blocks=pool.free_blocks,
            cached_blocks=pool.cached_blocks,
            owned_blocks=self.config.num_blocks - pool.evictable_blocks,
            block_size=self.config.block_size,
            num_preemptions=scheduler.num_preemptions,
            prefix_cache_queries_tokens=scheduler.prefix_queries_tokens,
            prefix_cache_hits_tokens=scheduler.prefix_hits_tokens,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            failed_rows=self._failed_rows,
            lost_hits_tokens=scheduler.lost_hits_tokens,
        )

    def tenant_loads(self) -> list[TenantLoad]:
        """Return the figures of every tenant that is listed or known, but for those that only probe."""
        tenants = [tenant for tenant in self._queue.tenants.values() if tenant.id not in probes.TENANTS]
        for tenant in tenants:
            self._queue.note_gap(tenant)  # who waits now may be further behind than when it was last served
        return [tenant.load() for tenant in tenants]

    def dump(self) -> EngineDump:
        """Return everything a person debugging wants; no text and no token ids."""
        sequences = [sequence.summary() for sequence in self._sequences.values()]
        return EngineDump(self.load(), self.tenant_loads(), sequences)

    def check_integrity(self) -> None:
        """Compare every count with the blocks themselves. Costs a walk over the pool.

        Raises:
            IntegrityError: says which figures differ.
        """
        self._pool.check_integrity(tenant.budget for tenant in self._queue.tenants.values())
        held = [block.id for sequence in self._sequences.values() for block in sequence.table.blocks]
        references = sum(block.ref_count for block in self._pool.blocks)
        if len(held) != references:
            raise IntegrityError(f"sequences hold {len(held)} blocks, the blocks count {references} holders")
