"""A sequence: one request's tokens, and how far they are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataplane.contracts.sampling import SamplingParams
from dataplane.contracts.usage import Phases
from dataplane.engine.block_table import BlockTable
from dataplane.engine.runner import Constraint
from dataplane.engine.timing import Time, Timeline
from dataplane.engine.token_counts import TokenCounts

if TYPE_CHECKING:
    from dataplane.engine.tenant_queue import TenantQueue


class Sequence:
    """One request. It has no phases: ``num_computed_tokens`` chases ``num_tokens``, and that is all.

    Attributes:
        request_id: of the caller.
        tenant: whose queue, counter and budget it uses.
        token_ids: prompt, then output.
        num_prompt_tokens: how many of them are prompt.
        sampling: how output tokens are drawn, and when they end.
        stop_token_ids: ids that end it, the model's own included unless it ignores them.
        counts: what its penalties weigh; None without any.
        constraint: what its output may go on with; None is anything.
        arrival: place in the order of arrival, kept through preemptions.
        table: its blocks while it runs.
        chain: digests of its full blocks, made when needed.
        is_private: the prefix cache neither finds nor keeps its blocks: its tenant's salt was changed while it ran.
        num_computed_tokens: leading tokens whose KV is in the pool.
        num_scored_tokens: leading prompt tokens whose scores were handed out; the first has none.
        high_water_tokens: most tokens ever computed; below it, work is recompute after a preemption.
        charged_tokens: leading prompt tokens that were paid for.
        prefix_tokens: leading tokens found in the cache when it was last admitted.
        cached_tokens: leading tokens found in the cache when it was first admitted; None before.
        running_since_step: the step of its admission, or the one in which it had caught up after a preemption.
        reclaimed_by: tenant for whose head it was preempted, its own perhaps, until it is preempted again; else empty.
        turn_end_tokens: with how many tokens it has had its turn among those of its tenant.
        num_preemptions: how often it had to start over.
        timeline: where its time goes; it arrives when it is made.
    """

    __slots__ = (
        "arrival",
        "cached_tokens",
        "chain",
        "charged_tokens",
        "constraint",
        "counts",
        "high_water_tokens",
        "is_private",
        "num_computed_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_scored_tokens",
        "prefix_tokens",
        "reclaimed_by",
        "request_id",
        "running_since_step",
        "sampling",
        "stop_token_ids",
        "table",
        "tenant",
        "timeline",
        "token_ids",
        "turn_end_tokens",
    )

    def __init__(
        self,
        request_id: str,
        tenant: TenantQueue,
        prompt_token_ids: list[int],
        *,
        sampling: SamplingParams,
        stop_token_ids: tuple[int, ...],
        arrival: int,
        time: Time,
    ) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(prompt_token_ids)
        self.sampling = sampling
        self.stop_token_ids = stop_token_ids
        self.counts: TokenCounts | None = None
        if sampling.penalises:
            self.counts = TokenCounts(prompt_token_ids if sampling.repetition_penalty != 1 else ())
        self.constraint: Constraint | None = None
        self.arrival = arrival
        self.table = BlockTable()
        self.chain: list[bytes] = []
        self.is_private = False
        self.num_computed_tokens = 0
        self.num_scored_tokens = 1
        self.high_water_tokens = 0
        self.charged_tokens = 0
        self.prefix_tokens = 0
        self.cached_tokens: int | None = None
        self.running_since_step = 0
        self.reclaimed_by = ""
        self.turn_end_tokens = 0
        self.num_preemptions = 0
        self.timeline = Timeline(tenant.waits, time)

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 while decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def needs_scores(self) -> bool:
        """Tokens of its prompt are still to be scored: then every one must be computed, cached or not."""
        return self.sampling.score_prompt and self.num_scored_tokens < self.num_prompt_tokens

    @property
    def is_running(self) -> bool:
        """It holds blocks."""
        return bool(self.table.blocks)

    @property
    def is_recomputing(self) -> bool:
        """It has not caught up with what it had before it was preempted."""
        return self.num_computed_tokens < self.high_water_tokens

    def phases(self, time: Time) -> Phases:
        """Return where its time has gone so far."""
        return self.timeline.phases(time, len(self.table), self.num_preemptions)

    def summary(self) -> dict[str, str | int | float]:
        """Return its figures, for a person debugging; no text and no token ids."""
        return {
            "request_id": self.request_id,
            "tenant_id": self.tenant.id,
            "state": "running" if self.is_running else "waiting",
            "prompt_tokens": self.num_prompt_tokens,
            "output_tokens": self.num_output_tokens,
            "computed_tokens": self.num_computed_tokens,
            "blocks": len(self.table),
            "preemptions": self.num_preemptions,
        }
