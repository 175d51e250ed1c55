"""What every study starts from: calls, a context, what steps cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dataplane.engine.config import EngineConfig
from dataplane.sim import workload
from dataplane.sim.costs import TWO_CORES, StepCosts
from dataplane.sim.gates import Gate, Open
from dataplane.sim.serving import Outcome, Serving
from dataplane.sim.workload import Call

SLOTS = 32
_MIXED_CONTEXT_TOKENS = workload.PROMPT_TOKENS[1] + workload.OUTPUT_TOKENS[1]


@dataclass(frozen=True)
class Study:
    """The calls to serve, and on what.

    Attributes:
        seed: of what is drawn.
        calls: in order of arrival; at times of their own in a trace, else all at once.
        context_tokens: no call is longer.
        costs: of the model's steps.
        source: where the calls are from, for the report.
        length_factor: by which the lengths of a trace were scaled.
    """

    seed: int
    calls: Sequence[Call]
    context_tokens: int
    costs: StepCosts
    source: str
    length_factor: float = 1.0

    @classmethod
    def of(
        cls, *, seed: int, count: int, costs: Path | None = None, trace: Path | None = None, context_tokens: int = 1024
    ) -> Self:
        """Draw ``count`` calls, or read them from a trace and scale them to ``context_tokens``.

        Raises:
            ValueError: a file is not what it should be.
        """
        table = StepCosts.read(costs) if costs else TWO_CORES
        if trace is None:
            return cls(seed, workload.mixed(count, seed), _MIXED_CONTEXT_TOKENS, table, "mixed")
        calls, factor = workload.read_trace(trace, count, context_tokens)
        return cls(seed, calls, context_tokens, table, trace.name, factor)

    def at_rate(self, calls_per_s: float | None) -> list[Call]:
        """Return the calls at a mean rate, drawn by a Poisson process or with a trace's bursts; None: all at once."""
        if self.source == "mixed":
            return workload.mixed(len(self.calls), self.seed, calls_per_s)
        return workload.at_rate(self.calls, calls_per_s)

    def config(self, *, pool_tokens: int | None = None, slots: int = SLOTS, **settings: Any) -> EngineConfig:
        """Return an engine's settings; without ``pool_tokens``, with memory for all slots at their longest."""
        block_size = settings.setdefault("block_size", 8)
        longest_blocks = -(-self.context_tokens // block_size)
        return EngineConfig(
            num_blocks=slots * longest_blocks + slots if pool_tokens is None else pool_tokens // block_size,
            max_num_seqs=slots,
            max_model_len=self.context_tokens,
            queue_limit_per_tenant=len(self.calls),
            prefix_cache=any(call.prefixes for call in self.calls),
            **settings,
        )

    def serve(
        self,
        config: EngineConfig,
        gate: Gate | None = None,
        *,
        calls_per_s: float | None = None,
        callers: int | None = None,
        count: int | None = None,
    ) -> Outcome:
        """Serve the calls, or the first ``count``; see :class:`dataplane.sim.serving.Serving`."""
        calls = self.at_rate(calls_per_s)[:count]
        part_tokens = workload.part_tokens(self.length_factor)
        return Serving(calls, config, self.costs, gate or Open(), callers=callers, part_tokens=part_tokens).run()

    def describe(self) -> dict[str, Any]:
        """Return what a report must say of its inputs."""
        return {
            "seed": self.seed,
            "calls": len(self.calls),
            "source": self.source,
            "length_factor": round(self.length_factor, 4),
            "context_tokens": self.context_tokens,
            "step_ms": {str(tokens): ms for tokens, ms in self.costs.points},
        }
