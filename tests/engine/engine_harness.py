"""What the engine's tests share: a fake model whose answer depends on every cell of KV it reads, and a driver."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from poison import poison_what_is_free

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import FinishReason, SequenceDelta, Submit, TokenScore
from dataplane.contracts.sampling import SamplingParams
from dataplane.contracts.usage import Phases
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.engine.runner import Row, RowFailure, RowResult, Scored
from dataplane.engine.sequence import Sequence as EngineSequence

VOCABULARY = 50
EOS = 7
POISON = -1
_MODULUS = 2**61 - 1


def _cell(previous: int, token_id: int) -> int:
    return (previous * 1_000_003 + token_id * 7_919 + 12_345) % _MODULUS


def _draw(
    cells_sum: int,
    sampling: SamplingParams,
    output_index: int,
    banned: Iterable[int],
    counts: Mapping[int, float] | None,
) -> int:
    weighed = sorted(counts.items()) if counts is not None else ""
    name = f"{cells_sum}:{sampling.seed}:{output_index}:{sampling.choice}:{weighed}"
    draw = random.Random(name).randrange(VOCABULARY)
    while draw in banned:
        draw = (draw + 1) % VOCABULARY
    return draw


def reference(request: Submit, eos: Sequence[int] = (EOS,)) -> list[int]:
    """Return the tokens of ``request`` by a plain loop: no blocks, no chunks, no neighbours."""
    sampling = request.sampling
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos))
    cell, total = 0, 0
    for token_id in request.prompt_token_ids:
        cell = _cell(cell, token_id)
        total += cell
    output: list[int] = []
    seen: dict[int, float] | None = None
    if sampling.penalises:
        seen = dict.fromkeys(request.prompt_token_ids, 0.0) if sampling.repetition_penalty != 1 else {}
    while len(output) < sampling.max_tokens:
        banned = stops if len(output) < sampling.min_tokens else ()
        output.append(_draw(total, sampling, len(output), banned, seen))
        if seen is not None:
            seen[output[-1]] = seen.get(output[-1], 0.0) + 1
        if output[-1] in stops and len(output) >= sampling.min_tokens:
            break
        cell = _cell(cell, output[-1])
        total += cell
    return output


class FakeRunner:
    """Keeps a KV pool of numbers: each cell depends on the one before it, each draw on all of them.

    So a block that is shared wrongly, reused too early, skipped or computed out of order changes the tokens.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.cells = [[POISON] * block_size for _ in range(num_blocks)]
        self.raises_for: set[str] = set()
        self.fails_for: set[str] = set()
        self.forgets_scores = False
        self.computed: dict[str, int] = {}
        self.steps = 0
        self.violations: list[str] = []

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        self.steps += 1
        if any(row.request_id in self.raises_for for row in rows):
            raise RuntimeError("the model raised")
        return [self._scored(row, self._compute(row)) for row in rows]

    def _scored(self, row: Row, result: int | RowFailure | None) -> RowResult:
        if isinstance(result, RowFailure) or not row.num_scores or self.forgets_scores:
            return result
        if any(mine != next_ for mine, next_ in zip(row.score_token_ids, row.token_ids[1:], strict=False)):
            self.violations.append(f"{row.request_id} scores other tokens than follow its positions")
        token_ids = [*row.score_token_ids]
        if result is not None and row.sampling.logprobs is not None:
            token_ids.append(result)
        return Scored(result, [TokenScore(token_id, -1.0, []) for token_id in token_ids])

    def _compute(self, row: Row) -> int | RowFailure | None:
        if row.request_id in self.fails_for:
            return RowFailure("logits are not numbers")
        if len(row.block_table) * self.block_size < row.position + len(row.token_ids):
            self.violations.append(f"{row.request_id} has too few blocks")
        self.computed[row.request_id] = self.computed.get(row.request_id, 0) + len(row.token_ids)
        for offset, token_id in enumerate(row.token_ids):
            position = row.position + offset
            previous = self._read(row, position - 1) if position else 0
            block_id = row.block_table[position // self.block_size]
            self.cells[block_id][position % self.block_size] = _cell(previous, token_id)
        if not row.sample:
            return None
        total = sum(self._read(row, position) for position in range(row.position + len(row.token_ids)))
        seen = None if row.counts is None else dict(zip(row.counts.token_ids, row.counts.counts, strict=True))
        return _draw(total, row.sampling, row.output_index, row.ban_token_ids, seen)

    def poison(self, block_id: int) -> None:
        self.cells[block_id] = [POISON] * self.block_size

    def _read(self, row: Row, position: int) -> int:
        cell = self.cells[row.block_table[position // self.block_size]][position % self.block_size]
        if cell == POISON:
            self.violations.append(f"{row.request_id} reads position {position}, which nobody computed")
        return cell


class NullRunner:
    """Answers at once: for simulations, where only the order of things matters."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        self.steps += 1
        self.tokens += sum(len(row.token_ids) for row in rows)
        return [1 if row.sample else None for row in rows]


class Driver:
    """An engine, what was asked of it and what came back. Time passes while the runner computes, and when told to."""

    def __init__(
        self,
        tenants: Mapping[str, Share] | None = None,
        *,
        runner: Any = None,
        step_s: float = 0.1,
        **settings: Any,
    ) -> None:
        self.config = EngineConfig(**({"num_blocks": 64, "max_num_seqs": 8, "step_token_budget": 64} | settings))
        self.runner = runner or FakeRunner(self.config.num_blocks, self.config.block_size)
        self.now_s = 1_000.0
        self.step_s = step_s
        self.engine = Engine(
            self.config,
            self,
            tenants or {},
            salt_secret=b"salt",
            version_digest="v1",
            eos_token_ids=(EOS,),
            clock=lambda: self.now_s,
        )
        if isinstance(self.runner, FakeRunner):
            poison_what_is_free(self.engine, self.runner.poison)
        self.requests: dict[str, Submit] = {}
        self.tokens: dict[str, list[int]] = {}
        self.scores: dict[str, list[TokenScore]] = {}
        self.ends: dict[str, SequenceDelta] = {}
        self.arrived_s: dict[str, float] = {}
        self.lived_ms: dict[str, float] = {}
        self.aborted: set[str] = set()
        self.most_rows = self.num_executions = 0

    def execute(self, rows: Sequence[Row]) -> list[RowResult]:
        self.most_rows = max(self.most_rows, len(rows))
        self.num_executions += 1
        self.now_s += self.step_s
        return self.runner.execute(rows)

    # asking

    def submit(self, tenant_id: str, prompt: list[int], max_tokens: int = 8, **sampling: Any) -> str:
        return self.submit_several(tenant_id, prompt, max_tokens, **sampling)[0]

    def submit_several(
        self,
        tenant_id: str,
        prompt: list[int],
        max_tokens: int = 8,
        n: int = 1,
        queue_wait_s: float | None = None,
        **sampling: Any,
    ) -> list[str]:
        """Ask for ``n`` choices; each counts as a request of its own from here on."""
        params = SamplingParams(max_tokens=max_tokens, **sampling)
        whole = Submit(f"r{len(self.requests)}", tenant_id, prompt, params, n, queue_wait_s)
        self.engine.submit(whole)
        for choice, request_id in enumerate(whole.sequence_ids()):
            own = msgspec.structs.replace(params, choice=choice)
            self.requests[request_id] = Submit(request_id, tenant_id, prompt, own)
            self.arrived_s[request_id] = self.now_s
            self.tokens[request_id] = []
            self.scores[request_id] = []
        return whole.sequence_ids()

    def abort(self, request_id: str) -> bool:
        if self.engine.abort(request_id):
            self.aborted.add(request_id)
            return True
        return False

    def preempt(self, request_id: str) -> None:
        """Preempt a running request now, as the scheduler would."""
        self.scheduler._preempt(self.sequence(request_id))

    def step(self) -> list[SequenceDelta]:
        before = self._progress() if self.engine.has_work else None
        deltas = self.engine.step()
        assert self.most_rows <= self.config.max_num_seqs, "a step has more rows than there are"
        assert deltas or before != self._progress() or self.engine._accounts._leases, "a step did nothing"
        for delta in deltas:
            assert delta.request_id not in self.ends, "a delta after the end"
            assert delta.request_id not in self.aborted, "a delta after the abort"
            self.tokens[delta.request_id] += delta.token_ids
            self.scores[delta.request_id] += delta.scores
            if delta.finish_reason is not None:
                self.ends[delta.request_id] = delta
                self.lived_ms[delta.request_id] = (self.now_s - self.arrived_s[delta.request_id]) * 1000
        assert not getattr(self.runner, "violations", None), self.runner.violations
        return deltas

    def _progress(self) -> tuple[int, int]:
        return self.num_executions, self.scheduler.num_preemptions

    def run(self, limit: int = 20_000) -> int:
        steps = 0
        while self.engine.has_work:
            self.step()
            steps += 1
            assert steps < limit, f"no end after {limit} steps: {self.engine.dump()}"
        return steps

    # looking

    @property
    def scheduler(self) -> Any:
        return self.engine._scheduler

    @property
    def pool(self) -> Any:
        return self.engine._pool

    def tenant(self, tenant_id: str) -> Any:
        return self.engine._accounts.of(tenant_id)

    def sequence(self, request_id: str) -> EngineSequence:
        return self.engine._sequences[request_id]

    def counter(self, tenant_id: str) -> float:
        return float(self.tenant(tenant_id).counter)

    def check(self) -> None:
        """What holds between any two calls."""
        self.engine.check_integrity()
        for load in self.engine.tenant_loads():
            assert load.owned_blocks + load.cached_blocks <= load.cap_blocks, load
            assert load.within_guarantee_preemptions == 0, load
        assert self.engine.load().num_running <= self.config.max_num_seqs

    def check_answers(self) -> None:
        """What holds at the end: every request ended once, with the tokens that a plain loop gives."""
        for request_id, request in self.requests.items():
            expected = reference(request)
            if request_id in self.aborted or self.ends[request_id].finish_reason is FinishReason.ERROR:
                assert self.tokens[request_id] == expected[: len(self.tokens[request_id])]
            else:
                assert self.tokens[request_id] == expected
                stopped = expected[-1] in self.sequence_stops(request)
                assert self.ends[request_id].finish_reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)

    def phases(self, request_id: str) -> Phases:
        """Where the time of an ended request went."""
        phases = self.ends[request_id].phases
        assert phases is not None
        return phases

    @staticmethod
    def sequence_stops(request: Submit) -> set[int]:
        return set(request.sampling.stop_token_ids) | (set() if request.sampling.ignore_eos else {EOS})
