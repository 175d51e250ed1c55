"""What a step of the model costs by batch and precision, against what the machine can do: ``make bench``.

For each precision and batch the real engine decodes behind a context; a step is all that the engine's process does for
it, the report to the server included. ``roofline`` is the time that the step's arithmetic takes at the machine's fp32
GEMM rate, or its bytes at the read bandwidth, whichever is longer, as part of the step; both rates are measured at the
start of the same round. Then: what prompts in chunks save those who decode meanwhile, what the KV pool wastes, and how
many more sequences fit when everything is int8 (both counted, not timed).
"""

import argparse
import gc
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import figures
import machine
import torch
import workloads
from result_log import Key, ResultLog
from rig import BLOCK_SIZE, Rig, make_engine, request
from scheduler import Instant
from servers import REPOSITORY, RUNTIME, measured_commit
from workloads import SWEEP_BATCHES as BATCHES
from workloads import SWEEP_CONTEXT_TOKENS as CONTEXT_TOKENS
from workloads import SWEEP_PROMPT_TOKENS as PROMPT_TOKENS

from dataplane.contracts import memory, precision
from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.model_config import ModelConfig, parse_config
from dataplane.engine.config import EngineConfig
from dataplane.model.loader import LoadedModel, load
from dataplane.model.program import Linear

_WARM_STEPS = 4
_PROMPTS = 4
_MIXED_CALLS, _MIXED_ROWS, _MIXED_TOKENS = 24, 8, 2048
_MIXED_STEP_TOKENS = {"chunked": memory.STEP_TOKENS, "whole": _MIXED_TOKENS + _MIXED_ROWS}
"""Most tokens of a step where prompts come in chunks, and where each is computed whole."""


@dataclass(frozen=True)
class Work:
    """What computing takes: operations and bytes of a model in one precision.

    Attributes:
        layers_flop: of a token in all layers, attention apart.
        head_flop: of a token whose logits are wanted.
        weights_bytes: read once in a step.
        attention_flop: of a token for each token before it.
        kv_bytes: read by a token for each token before it.
    """

    layers_flop: float
    head_flop: float
    weights_bytes: float
    attention_flop: float
    kv_bytes: float

    @classmethod
    def of(cls, loaded: LoadedModel) -> "Work":
        """Count a model's."""
        flop = [0.0, 0.0]
        weights_bytes = 0
        for number, operation in enumerate(loaded.program.operations):
            if isinstance(operation, Linear):
                packed, _, outputs, inputs = loaded.weights.matrices[operation.weight]
                flop[number >= loaded.program.selection] += 2.0 * outputs * inputs
                weights_bytes += packed.nbytes
        config = loaded.config
        attention_flop = 4.0 * config.num_layers * config.num_heads * config.head_dim
        kv_bytes = memory.kv_bytes_per_token(config, loaded.kv_dtype)
        return cls(flop[0], flop[1], weights_bytes, attention_flop, kv_bytes)

    def decode(self, batch: int, context_tokens: float) -> tuple[float, float]:
        """Return the operations and the bytes of a step of ``batch`` rows."""
        each = self.layers_flop + self.head_flop + self.attention_flop * context_tokens
        return batch * each, self.weights_bytes + batch * self.kv_bytes * context_tokens

    def prefill(self, tokens: int, steps: int) -> tuple[float, float]:
        """Return the operations and the bytes of a prompt that is computed in ``steps`` steps."""
        flop = self.layers_flop * tokens + self.head_flop + self.attention_flop * tokens * (tokens + 1) / 2
        return flop, self.weights_bytes * steps + self.kv_bytes * tokens * (steps + 1) / 2

    def crossover(self, flop_per_s: float, bytes_per_s: float) -> float:
        """Return the batch from which on a step's arithmetic takes longer than reading the weights does."""
        return self.weights_bytes / bytes_per_s / ((self.layers_flop + self.head_flop) / flop_per_s)


def decode(loaded: LoadedModel, batch: int, steps: int) -> dict[str, float]:
    """Time steps of ``batch`` decoding rows."""
    prompt_tokens = CONTEXT_TOKENS - _WARM_STEPS - steps // 2
    # The first rows decode while the others' prompts are computed.
    meanwhile_steps = 2 * -(-batch * CONTEXT_TOKENS // memory.STEP_TOKENS)
    output_tokens = meanwhile_steps + _WARM_STEPS + steps + 2
    rig = Rig(loaded, batch, prompt_tokens + output_tokens, memory.STEP_TOKENS)
    for number in range(batch):
        rig.submit(number, prompt_tokens, output_tokens)
    while rig.engine.load().prompt_tokens < batch * prompt_tokens:
        rig.step()
    for _ in range(_WARM_STEPS):
        rig.step()
    context_tokens = rig.mean_context_tokens() + steps / 2
    taken = [rig.step() for _ in range(steps)]
    step_s = statistics.median(one.took_s for one in taken)
    flop, read_bytes = Work.of(loaded).decode(batch, context_tokens)
    return {
        "step_ms": step_s * 1000,
        "outside_share": statistics.median(1 - one.forward_s / one.took_s for one in taken),
        "output_tokens_per_s": batch / step_s,
        "context_tokens": context_tokens,
        **_rates(step_s, flop, read_bytes),
    }


def prefill(loaded: LoadedModel) -> dict[str, float]:
    """Time prompts of ``PROMPT_TOKENS``, one after another, to the first token."""
    work = Work.of(loaded)
    steps = PROMPT_TOKENS // memory.STEP_TOKENS
    rig = Rig(loaded, 1, PROMPT_TOKENS + 1, memory.STEP_TOKENS)
    times_s = []
    for number in range(_PROMPTS):
        rig.submit(number, PROMPT_TOKENS, 1)
        times_s.append(sum(rig.step().took_s for _ in range(steps)))
    assert not rig.engine.has_work
    prompt_s = statistics.median(times_s[1:])
    flop, read_bytes = work.prefill(PROMPT_TOKENS, steps)
    return {
        "prompt_ms": prompt_s * 1000,
        "prompt_tokens_per_s": PROMPT_TOKENS / prompt_s,
        **_rates(prompt_s, flop, read_bytes),
    }


def _rates(took_s: float, flop: float, read_bytes: float) -> dict[str, float]:
    return {
        "gflop": flop / 1e9,
        "gb": read_bytes / 1e9,
        "gflop_per_s": flop / took_s / 1e9,
        "gb_per_s": read_bytes / took_s / 1e9,
    }


def mixed(loaded: LoadedModel, step_tokens: int) -> dict[str, float]:
    """Serve prompts of up to ``_MIXED_TOKENS`` while others decode; a step has at most ``step_tokens``."""
    draw = random.Random(0)
    rig = Rig(loaded, _MIXED_ROWS, _MIXED_TOKENS + 128, step_tokens)
    wanted = [(draw.randint(32, _MIXED_TOKENS), draw.randint(64, 128)) for _ in range(_MIXED_CALLS)]
    for number, (prompt_tokens, output_tokens) in enumerate(wanted):
        rig.submit(number, prompt_tokens, output_tokens)
    began_s = now_s = time.perf_counter()
    tokens_s: dict[str, list[float]] = {}
    while rig.engine.has_work:
        made = rig.step().request_ids
        now_s = time.perf_counter()
        for request_id in made:
            tokens_s.setdefault(request_id, []).append(now_s)
    wall_s = now_s - began_s
    gaps_ms = sorted((later - earlier) * 1000 for times_s in tokens_s.values() for earlier, later in pairwise(times_s))
    rate = sum(output_tokens for _, output_tokens in wanted) / wall_s
    return {"itl_p99_ms": figures.quantile(gaps_ms, 0.99), "output_tokens_per_s": rate}


def kv_waste() -> dict[str, float]:
    """Count the slots of owned blocks that hold nothing while C's callers keep all rows busy; no model is needed."""
    work = workloads.workload("C", 0)
    config = EngineConfig(num_blocks=32 * 1024 // BLOCK_SIZE, block_size=BLOCK_SIZE, max_model_len=1024)
    engine = make_engine(config, Instant())
    for number, one in enumerate(work.requests):
        engine.submit(request(number, len(one.prompt), one.output_tokens))
    shares = []
    while engine.has_work:
        engine.step()
        dump = engine.dump()
        running = [one for one in dump.sequences if one["state"] == "running"]
        if len(running) == config.max_num_seqs:
            held = sum(int(one["computed_tokens"]) for one in running)
            shares.append(1 - held / (sum(int(one["blocks"]) for one in running) * BLOCK_SIZE))
    return {"waste_share": statistics.mean(shares), "steps": len(shares)}


def admission(config: ModelConfig) -> dict[str, float]:
    """Return how many times more sequences fit where int8 and its int8 KV take the memory of fp32.

    By the planner's arithmetic, for 1,024 tokens each, where half of what fp32 takes is not KV.
    """

    def fitting(engine: EngineSettings, room_bytes: int) -> float:
        kv_dtype = precision.of_keys_and_values(config, engine)
        kept_bytes = room_bytes - memory.plan(config, engine).needed_bytes
        return kept_bytes / (1024 * memory.kv_bytes_per_token(config, kv_dtype))

    whole = EngineSettings(dtype="fp32")
    room_bytes = 2 * memory.plan(config, whole).needed_bytes
    return {"ratio": fitting(EngineSettings(dtype="int8", kv_dtype="int8"), room_bytes) / fitting(whole, room_bytes)}


class Sweep:
    """Measures what the log does not have yet."""

    def __init__(self, log: ResultLog, commit: str, steps: int) -> None:
        self._log, self._commit, self._steps = log, commit, steps

    def count(self, config: ModelConfig) -> None:
        """What needs no clock."""
        if self._lacks("kv-waste", 0, "engine"):
            self._write("kv-waste", 0, "engine", kv_waste())
        if self._lacks("admission", 0, "engine"):
            self._write("admission", 0, "engine", admission(config))

    def measure(self, model: Path, dtype: str, names: Sequence[str], round_number: int) -> None:
        """Measure the steps called ``names``."""
        server = f"pagoda-{dtype}"
        left = [name for name in names if self._lacks(name, round_number, server)]
        if not left:
            return
        loaded = load(model, RUNTIME, EngineSettings(dtype=dtype), lambda *_: None)
        rates = {"read_gb_per_s": machine.read_gb_per_s(), "gemm_gflop_per_s": machine.gemm_gflop_per_s()}
        for name in left:
            self._write(name, round_number, server, self._measured(loaded, name, rates) | rates)
        batch = Work.of(loaded).crossover(rates["gemm_gflop_per_s"] * 1e9, rates["read_gb_per_s"] * 1e9)
        self._write("crossover", round_number, server, {"batch": batch} | rates)

    def _measured(self, loaded: LoadedModel, name: str, rates: dict[str, float]) -> dict[str, float]:
        if name in _MIXED_STEP_TOKENS:
            return mixed(loaded, _MIXED_STEP_TOKENS[name])
        found = prefill(loaded) if name == "prefill" else decode(loaded, int(name.partition("-")[2]), self._steps)
        return found | against(found, rates)

    def _lacks(self, name: str, round_number: int, server: str) -> bool:
        return Key(self._commit, name, round_number, server) not in self._log

    def _write(self, name: str, round_number: int, server: str, found: dict[str, float]) -> None:
        rounded = {figure: round(value, 4) for figure, value in found.items()}
        self._log.append(Key(self._commit, name, round_number, server), rounded)
        print(name, round_number, server, rounded, flush=True)


def main() -> int:
    """Measure whatever is left to measure."""
    arguments = _parse()
    torch.set_num_threads(os.cpu_count() or 1)
    out: Path = arguments.out / "tiny" if arguments.tiny else arguments.out
    sweep = Sweep(ResultLog(out / "sweep.jsonl", fresh=arguments.fresh), measured_commit(), arguments.steps)
    names = [f"decode-{batch}" for batch in BATCHES if not arguments.tiny or batch <= 2] + ["prefill"]
    gc.disable()
    sweep.count(parse_config((arguments.model / "config.json").read_bytes()))
    for round_number in range(arguments.rounds or (1 if arguments.tiny else 3)):
        for dtype in arguments.dtypes.split(","):
            whole = dtype == "int8" and not arguments.tiny
            sweep.measure(arguments.model, dtype, [*names, *(_MIXED_STEP_TOKENS if whole else ())], round_number)
    print(f"written to {out / 'sweep.jsonl'}")
    return 0


def against(figures: dict[str, float], rates: dict[str, float]) -> dict[str, float]:
    """Return the part of the time that the machine's own rates would take."""
    ideal_s = max(figures["gflop"] / rates["gemm_gflop_per_s"], figures["gb"] / rates["read_gb_per_s"])
    return {"roofline": ideal_s * 1000 / figures.get("step_ms", figures.get("prompt_ms", 0.0))}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    default_model = REPOSITORY / "var" / "models" / "smollm2-135m-instruct"
    add = parser.add_argument
    add("--dtypes", default="fp32,fp16,int8,int4", help="with commas")
    add("--rounds", type=int, help="3, or 1 where they are tiny")
    add("--steps", type=int, default=24, help="to time, of each batch")
    add("--tiny", action="store_true", help="two small batches, into a folder of their own: to try the sweep itself")
    add("--fresh", action="store_true", help="begin anew instead of going on")
    add("--model", type=Path, default=Path(os.environ.get("PAGODA_MODEL_DIR", default_model)))
    add("--out", type=Path, default=REPOSITORY / "var" / "bench")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
