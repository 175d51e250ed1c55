"""Calls served by the real engine, in the time that the model would take."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from dataplane.contracts.generation import Submit
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.engine.runner import Row, RowResult
from dataplane.sim.costs import StepCosts
from dataplane.sim.gates import Gate
from dataplane.sim.workload import Call

_TENANT = "tenant"


@dataclass(slots=True)
class Served:
    """What became of one call, in seconds from the beginning.

    Attributes:
        called_s: it arrived.
        fill_s: how long it stood at the gate while the engine was idle.
        first_token_s, end_s: as its caller saw them.
    """

    call: Call
    called_s: float
    fill_s: float = 0.0
    first_token_s: float = 0.0
    end_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        """From the call to the first token."""
        return self.first_token_s - self.called_s

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first."""
        return (self.end_s - self.first_token_s) / max(1, self.call.output_tokens - 1)


@dataclass
class Outcome:
    """A run, and its figures.

    Attributes:
        served: every call, in order of its end.
        busy_s: for how long the model computed.
        computed_tokens: by the model, recompute included.
        padded_rows: rows that computed nothing that anybody wanted.
        rows: all others.
        held_token_s: KV tokens that were held, times how long.
        lengths_s: for how long rows had so many tokens written.
        preemptions: by the engine.
        cached_tokens: prompt tokens that were found in the cache.
    """

    served: list[Served] = field(default_factory=list)
    busy_s: float = 0.0
    computed_tokens: int = 0
    padded_rows: int = 0
    rows: int = 0
    held_token_s: float = 0.0
    lengths_s: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    preemptions: int = 0
    cached_tokens: int = 0

    @property
    def span_s(self) -> float:
        """From the first call to the last end."""
        return self.served[-1].end_s - min(each.called_s for each in self.served)

    @property
    def output_tokens_per_s(self) -> float:
        """Throughput."""
        return sum(each.call.output_tokens for each in self.served) / self.span_s

    @property
    def waste(self) -> float:
        """Part of the KV memory held that was not written."""
        return 1 - self._token_s(1) / self.held_token_s

    def tail_waste(self, block_size: int) -> float:
        """Return the part of the memory behind the ends of sequences, had they been held in such blocks."""
        return 1 - self._token_s(1) / self._token_s(block_size)

    def _token_s(self, block_size: int) -> float:
        return sum(-(-tokens // block_size) * block_size * seconds for tokens, seconds in self.lengths_s.items())

    @property
    def rows_mean(self) -> float:
        """Sequences that a step computed, over the time."""
        return sum(self.lengths_s.values()) / self.busy_s

    @property
    def recomputed(self) -> float:
        """Part of the computed tokens that had been computed before."""
        first_time = sum(each.call.prompt_tokens + each.call.output_tokens - 1 for each in self.served)
        return 1 - (first_time - self.cached_tokens) / self.computed_tokens

    def figures(self) -> dict[str, float]:
        """Return what every report shows."""
        ttfts_s = sorted(each.ttft_s for each in self.served)
        ends_s = sorted(each.end_s - each.called_s for each in self.served)
        return {
            "output_tokens_per_s": round(self.output_tokens_per_s, 2),
            "ttft_p50_s": round(median(ttfts_s), 3),
            "ttft_p95_s": round(_quantile(ttfts_s, 0.95), 3),
            "tpot_p50_ms": round(median(each.tpot_s for each in self.served) * 1000, 2),
            "e2e_p50_s": round(median(ends_s), 3),
            "e2e_p95_s": round(_quantile(ends_s, 0.95), 3),
            "fill_mean_s": round(fmean(each.fill_s for each in self.served), 3),
            "padded_rows_share": round(self.padded_rows / (self.padded_rows + self.rows), 4),
            "preemptions": self.preemptions,
        }


class _Model:
    """A runner that answers at once and moves the clock by what the step would have taken."""

    def __init__(self, costs: StepCosts, block_size: int, gate: Gate, outcome: Outcome) -> None:
        self.now_s = 0.0
        self._gate = gate
        self._costs = costs
        self._block_size = block_size
        self._outcome = outcome

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        """See :class:`dataplane.engine.runner.Runner`."""
        outcome = self._outcome
        padding_rows = self._gate.padding_rows
        tokens = sum(len(row.token_ids) for row in rows)
        step_s = self._costs.ms(tokens + padding_rows) / 1000
        self.now_s += step_s
        outcome.busy_s += step_s
        outcome.computed_tokens += tokens
        outcome.rows += len(rows)
        outcome.padded_rows += padding_rows
        reserved = self._gate.reserved_tokens
        held_tokens = self._block_size * sum(len(row.block_table) for row in rows) if reserved is None else reserved
        outcome.held_token_s += step_s * held_tokens
        for row in rows:
            outcome.lengths_s[row.position + len(row.token_ids)] += step_s
        return [0 if row.sample else None for row in rows]


class Serving:
    """One run.

    Args:
        calls: in order of arrival.
        config: of the engine.
        costs: of the model.
        gate: in front of the engine.
        callers: None: each call comes at its time. Else so many callers call one after another, whatever the times.
        part_tokens: tokens of one prefix part of the calls.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        config: EngineConfig,
        costs: StepCosts,
        gate: Gate,
        *,
        callers: int | None = None,
        part_tokens: int = 1,
    ) -> None:
        self._gate = gate
        self._outcome = Outcome()
        self._model = _Model(costs, config.block_size, gate, self._outcome)
        self._engine = Engine(config, self._model, {}, salt_secret=b"", version_digest="", eos_token_ids=())
        self._to_come = deque(calls)
        self._callers = callers
        self._part_tokens = part_tokens
        self._queue: deque[Call] = deque()
        self._here: dict[str, Served] = {}
        self._idle_since_s = 0.0

    def run(self) -> Outcome:
        """Serve every call.

        Raises:
            ValueError: the gate lets a call in never.
        """
        while self._to_come or self._queue or self._engine.has_work:
            self._arrive()
            self._enter()
            if self._engine.has_work:
                self._step()
            elif self._more_to_come:
                self._model.now_s = max(self._model.now_s, self._to_come[0].arrival_s)
            else:
                raise ValueError(f"call {self._queue[0].number} does not fit, even alone: give the pool more tokens")
        self._outcome.preemptions = self._engine.load().num_preemptions
        self._outcome.cached_tokens = self._engine.load().prefix_cache_hits_tokens
        return self._outcome

    @property
    def _more_to_come(self) -> bool:
        return bool(self._to_come) and (self._callers is None or len(self._here) < self._callers)

    def _arrive(self) -> None:
        while self._more_to_come:
            called_s = self._to_come[0].arrival_s if self._callers is None else self._model.now_s
            if called_s > self._model.now_s:
                return
            call = self._to_come.popleft()
            self._here[str(call.number)] = Served(call, called_s)
            self._queue.append(call)

    def _enter(self) -> None:
        idle = not self._engine.has_work
        for call in self._gate.enter(self._queue, idle=idle, more_to_come=self._more_to_come):
            served = self._here[str(call.number)]
            if idle:
                served.fill_s = self._model.now_s - max(served.called_s, self._idle_since_s)
            sampling = SamplingParams(max_tokens=call.output_tokens, ignore_eos=True)
            self._engine.submit(Submit(str(call.number), _TENANT, call.token_ids(self._part_tokens), sampling))

    def _step(self) -> None:
        for delta in self._engine.step():
            served = self._here[delta.request_id]
            if not served.first_token_s:
                served.first_token_s = self._model.now_s
            if delta.finish_reason is not None:
                served.end_s = self._model.now_s
                self._outcome.served.append(served)
                del self._here[delta.request_id]
                self._gate.leave(served.call)
        if not self._engine.has_work:
            self._idle_since_s = self._model.now_s


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
