"""From a model folder to a runner and an engine: how much KV memory, how long a context, what the engine is told."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
import torch

from dataplane.contracts import memory
from dataplane.contracts.generation import LoadModel
from dataplane.contracts.parallel import Place
from dataplane.contracts.ranks import MakePool
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.engine.runner import Runner
from dataplane.model import devices, loader
from dataplane.model.devices import CPU, CUDA
from dataplane.model.loader import LoadedModel
from dataplane.model.model_runner import ModelRunner
from dataplane.model.parallel.ranks import LeadingExecutor, Ranks, SpreadPool
from dataplane.model.program import RESIDUAL
from dataplane.worker.masks import Masks

_MEMORY_SHARE = {CPU: 0.25, CUDA: 0.85}
"""Of a device's available memory, for KV where nobody said how much: a GPU has nothing else to do."""
_LONG_BESIDE_ROWS = {CPU: 4, CUDA: 1 << 20}
"""See :class:`EngineConfig`: on a GPU a row costs next to nothing, so nothing sits out."""


class SetupError(ValueError):
    """KV memory that holds no block, or that nobody can size; the sentence names what there is."""


class Pool(Protocol):
    """Memory of keys and values that a sleeping replica gives back."""

    def release(self) -> None:
        """Give it back to the machine."""

    def restore(self) -> None:
        """Take it again."""


class Setup(msgspec.Struct, frozen=True):
    """A loaded model and what an engine on it needs."""

    request: LoadModel
    runner: ModelRunner
    pool: Pool
    config: EngineConfig
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    kernels: str

    @property
    def context_tokens(self) -> int:
        """Most tokens of one sequence."""
        return self.config.max_model_len

    def make_masks(self) -> Masks:
        """Return what says which tokens a grammar allows."""
        return Masks(Path(self.request.model_dir), self.vocab_size, self.eos_token_ids)

    def make_engine(self, runner: Runner, masks: Masks | None = None) -> Engine:
        """Return an engine that computes with ``runner`` (the one of this setup, perhaps wrapped)."""
        return Engine(
            config=self.config,
            runner=runner,
            tenants=self.request.tenants,
            leases=self.request.leases,
            salt_secret=self.request.salt_secret,
            version_digest=self.request.version_digest,
            eos_token_ids=self.eos_token_ids,
            clock=time.perf_counter,
            constrain=None if masks is None else masks.constrain,
        )


def set_up(request: LoadModel, progress: Callable[[str, int, int], None]) -> Setup:
    """Load the model and size its pool.

    Raises:
        SetupError: the KV memory holds no block.
        Exception: whatever the loader finds wrong with the folder.
    """
    if request.parallel.ranks == 1:
        model = _load(request, progress, Place())
        config = _engine_config(request, model)
        runner = model.make_runner(config.num_blocks, config.block_size, config.step_token_budget, config.max_num_seqs)
        return _setup(request, model, config, runner, runner.pool)
    ranks = Ranks(request.parallel, request.engine.device)
    try:
        return _set_up_ranks(request, progress, ranks)
    except BaseException:
        ranks.close()
        raise


def _set_up_ranks(request: LoadModel, progress: Callable[[str, int, int], None], ranks: Ranks) -> Setup:
    ranks.begin_load(request)
    model = _load(request, progress, ranks.place)
    ranks.end_load(progress)
    config = _engine_config(request, model)
    threads = max(1, torch.get_num_threads() // request.parallel.ranks)
    what = MakePool(config.num_blocks, config.block_size, config.step_token_budget, config.max_num_seqs, threads)
    executor, pool = model.make_executor(what, ranks.group.all_reduce)
    ranks.make_pools(what)
    leading = LeadingExecutor(executor, ranks, model.program.widths[RESIDUAL])
    runner = ModelRunner(model.config, leading, pool, model.context_tokens)
    return _setup(request, model, config, runner, SpreadPool(pool, ranks))


def _load(request: LoadModel, progress: Callable[[str, int, int], None], place: Place) -> LoadedModel:
    return loader.load(
        Path(request.model_dir), Path(request.runtime_dir), request.engine, progress,
        version_digest=request.version_digest, place=place,
    )  # fmt: skip


def _engine_config(request: LoadModel, model: LoadedModel) -> EngineConfig:
    settings = request.engine
    wanted_blocks = settings.max_num_seqs * -(-model.context_tokens // settings.block_size)
    kv_bytes = _available_bytes(model) if settings.kv_memory_mb is None else settings.kv_memory_mb * 2**20
    block_bytes = memory.block_bytes(model.config, settings)
    fitting_blocks = int(kv_bytes) // block_bytes
    num_blocks = min(fitting_blocks, wanted_blocks) if settings.kv_memory_mb is None else fitting_blocks
    if num_blocks < 2:
        raise SetupError(f"{int(kv_bytes)} bytes of KV memory hold {num_blocks} blocks of {block_bytes} bytes")
    return EngineConfig(
        num_blocks=num_blocks,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=min(model.context_tokens, num_blocks * settings.block_size),
        step_token_budget=max(memory.STEP_TOKENS, settings.max_num_seqs),
        prefix_cache=settings.prefix_cache,
        long_beside_rows=_LONG_BESIDE_ROWS[model.device],
        queue_limit_per_tenant=request.queue_limit_per_tenant,
    )


def _setup(request: LoadModel, model: LoadedModel, config: EngineConfig, runner: ModelRunner, pool: Pool) -> Setup:
    return Setup(
        request=request,
        runner=runner,
        pool=pool,
        config=config,
        eos_token_ids=tuple(model.config.eos_token_ids),
        vocab_size=model.config.vocab_size,
        kernels=f"{model.device}, weights {model.dtype}, kv {model.kv_dtype}, {runner.kernels}",
    )


def _available_bytes(model: LoadedModel) -> float:
    """Return what a pool may take: on CPU of what the kernel says can be had without swapping."""
    if model.device == CUDA:
        weights_bytes = sum(tensor.nbytes for tensor, *_ in model.weights.matrices.values())
        return (devices.free_bytes() - weights_bytes) * _MEMORY_SHARE[CUDA]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 * _MEMORY_SHARE[CPU]
    raise SetupError("the kernel does not say how much memory is available; give kv_memory_mb")
