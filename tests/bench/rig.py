"""The engine's process without its process: the real engine on the real model, and how long each step takes."""

import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dataplane.contracts.generation import FromEngine, StepDone, Submit
from dataplane.contracts.ranks import MakePool
from dataplane.contracts.sampling import SamplingParams
from dataplane.contracts.wire import FrameReader
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.engine.runner import Runner
from dataplane.model.executor import Executor
from dataplane.model.kv_pool import KvPool
from dataplane.model.loader import LoadedModel
from dataplane.model.logits import Logits
from dataplane.model.model_runner import ModelRunner
from dataplane.model.step import Step
from dataplane.worker.engine_process import Channel, LoadedEngine, Stopwatch
from dataplane.worker.masks import Masks

BLOCK_SIZE = 8


class TimedExecutor:
    """An executor that notes how long the forward pass takes."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.kernels = executor.kernels
        self.forward_s = 0.0

    def run(self, step: Step, pool: KvPool) -> None:
        """See :class:`dataplane.model.executor.Executor`."""
        began_s = time.perf_counter()
        self._executor.run(step, pool)
        self.forward_s += time.perf_counter() - began_s

    def logits(self, at: NDArray[np.int32]) -> Logits:
        """See :class:`dataplane.model.executor.Executor`."""
        began_s = time.perf_counter()
        found = self._executor.logits(at)
        self.forward_s += time.perf_counter() - began_s
        return found

    def residual(self, tokens: int) -> Tensor:
        """See :class:`dataplane.model.executor.Executor`."""
        return self._executor.residual(tokens)

    def put_residual(self, rows: Tensor) -> None:
        """See :class:`dataplane.model.executor.Executor`."""
        self._executor.put_residual(rows)


@dataclass(frozen=True)
class Stepped:
    """What a step took, in seconds, its part in the model's forward pass, and whose tokens it made."""

    took_s: float
    forward_s: float
    request_ids: list[str]


class Rig:
    """An engine on a model.

    Args:
        loaded: the model.
        batch: most rows at once.
        length_tokens: most tokens of each.
        step_tokens: most tokens in a step.
    """

    def __init__(self, loaded: LoadedModel, batch: int, length_tokens: int, step_tokens: int) -> None:
        num_blocks = batch * (-(-length_tokens // BLOCK_SIZE) + 1)
        budget = max(step_tokens, batch)
        what = MakePool(num_blocks, BLOCK_SIZE, budget, batch, torch.get_num_threads())
        executor, pool = loaded.make_executor(what)
        self.executor = TimedExecutor(executor)
        stopwatch = Stopwatch(ModelRunner(loaded.config, self.executor, pool, loaded.context_tokens))
        config = EngineConfig(
            num_blocks, BLOCK_SIZE, batch, length_tokens, budget, prefix_cache=False, watermark_fraction=0.0
        )
        self.engine = make_engine(config, stopwatch)
        ours, self._servers = socket.socketpair()
        self._frames: FrameReader[FromEngine] = FrameReader(FromEngine)
        masks = Masks(Path(), config.max_num_seqs, ())
        self._loaded = LoadedEngine(Channel(ours), self.engine, stopwatch, pool, masks)

    def submit(self, number: int, prompt_tokens: int, output_tokens: int) -> None:
        """Add a request."""
        self.engine.submit(request(number, prompt_tokens, output_tokens))

    def step(self) -> Stepped:
        """Run a step, as the engine's process does, the report to its server included."""
        self.executor.forward_s = 0.0
        began_s = time.perf_counter()
        self._loaded.step()
        took_s = time.perf_counter() - began_s
        (done,) = self._frames.feed(self._servers.recv(1 << 20))
        assert isinstance(done, StepDone)
        return Stepped(took_s, self.executor.forward_s, [delta.request_id for delta in done.deltas if delta.token_ids])

    def mean_context_tokens(self) -> float:
        """Return how much the rows have computed, on average."""
        return statistics.mean(int(one["computed_tokens"]) for one in self.engine.dump().sequences)


def make_engine(config: EngineConfig, runner: Runner) -> Engine:
    """Return an engine without tenants."""
    return Engine(config, runner, {}, salt_secret=b"", version_digest="", eos_token_ids=(), clock=time.perf_counter)


def request(number: int, prompt_tokens: int, output_tokens: int) -> Submit:
    """Return a request whose prompt is its own."""
    sampling = SamplingParams(max_tokens=output_tokens, ignore_eos=True, temperature=0.0)
    prompt = [(1_000 + 37 * number + place) % 40_000 for place in range(prompt_tokens)]
    return Submit(f"req_{number:028d}", "tenant", prompt, sampling)
