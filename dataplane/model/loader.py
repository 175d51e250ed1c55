"""From a model folder to a model that can run: convert once per node, afterwards attach the runtime format by mmap."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch
from torch import Tensor

from dataplane.contracts import parallel, precision
from dataplane.contracts.catalog import AUTO, EngineSettings
from dataplane.contracts.generation import CONVERT
from dataplane.contracts.model_config import ConfigError, ModelConfig, add_generation_config, parse_config
from dataplane.contracts.parallel import Place
from dataplane.contracts.ranks import MakePool
from dataplane.kernels.panels import PRECISIONS
from dataplane.model import devices, runtime_format
from dataplane.model.allocator import give_back_freed_memory
from dataplane.model.architectures import architecture_of
from dataplane.model.checkpoint import Checkpoint, CheckpointError, weight_files
from dataplane.model.devices import CPU, CUDA
from dataplane.model.executor import Executor, make_executor, make_gpu_executor
from dataplane.model.kv_pool import DTYPES, KvPool
from dataplane.model.model_runner import SCORED_AT_ONCE_TOKENS, ModelRunner
from dataplane.model.packing import LAYOUT_VERSION, Packed, PackingError, as_packed, packed_tensors
from dataplane.model.parallel.sharding import Shard, shard_of
from dataplane.model.program import Program
from dataplane.model.runtime_format import Identity, RuntimeFormatError, RuntimeWeights
from dataplane.model.step import StepLimits

Progress = Callable[[str, int, int], None]
"""Called with a phase (convert, attach), the bytes done and the bytes of the phase."""

_DIGEST = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_-]{0,127}")
_log = structlog.get_logger(__name__)


class LoadError(RuntimeError):
    """A model that cannot be loaded; the sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights ready to run.

    Attributes:
        config: what the folder says, with the end tokens of ``generation_config.json``.
        context_tokens: most tokens of one sequence: the model's, or less if the settings say so.
        dtype: precision of the weights.
        kv_dtype: precision of keys and values in the pool.
        program: the forward pass, or a rank's part of it.
        weights: mapped from the runtime format; runners share them.
        device: where runners compute: ``cpu`` or ``cuda``.
    """

    config: ModelConfig
    context_tokens: int
    dtype: str
    kv_dtype: str
    program: Program
    weights: Packed
    device: str = CPU

    def make_runner(self, num_blocks: int, block_size: int, max_tokens: int, max_num_seqs: int) -> ModelRunner:
        """Return a runner with a KV pool of its own, for steps of up to ``max_tokens`` of up to ``max_num_seqs`` rows.

        Raises:
            LoadError: no memory for the pool or a step.
        """
        what = MakePool(num_blocks, block_size, max_tokens, max_num_seqs, torch.get_num_threads())
        executor, pool = self.make_executor(what)
        return ModelRunner(self.config, executor, pool, self.context_tokens)

    def make_executor(
        self, what: MakePool, all_reduce: Callable[[Tensor], None] | None = None
    ) -> tuple[Executor, KvPool]:
        """Return an executor and a KV pool for it.

        Args:
            what: how large, and how many threads compute.
            all_reduce: as of :func:`dataplane.model.executor.make_executor`; None for the only rank.

        Raises:
            LoadError: no memory for the pool or a step.
        """
        try:
            pool = KvPool(self.program, what.num_blocks, what.block_size, self.kv_dtype, self.device)
            if self.device == CUDA:
                context_tokens = min(self.context_tokens, what.num_blocks * what.block_size)
                return make_gpu_executor(self.program, self.weights, pool, context_tokens, all_reduce), pool
            limits = StepLimits(what.max_tokens, max(what.max_num_seqs, SCORED_AT_ONCE_TOKENS))
            add_up = all_reduce or (lambda part: None)
            return make_executor(self.program, self.weights, limits, what.threads, all_reduce=add_up), pool
        except MemoryError as error:
            raise LoadError(f"{error}; lower --kv-memory-mb") from error


def load(
    model_dir: Path,
    runtime_dir: Path,
    engine: EngineSettings,
    progress: Progress,
    *,
    version_digest: str = "",
    place: Place = Place(),  # noqa: B008 - it is frozen
) -> LoadedModel:
    """Attach the weights of ``model_dir``, converting them first when ``runtime_dir`` does not hold them yet.

    Args:
        model_dir: a folder in the Hugging Face layout.
        runtime_dir: where runtime folders are kept; any number of processes may share it.
        engine: dtype, device and context limit.
        progress: called while bytes are converted, attached and packed.
        version_digest: content address of the folder's files, if known; else the files' identity on this disk counts.
        place: which rank's part of the model.

    Raises:
        LoadError: the folder, the settings or the machine do not allow it.
    """
    if reason := devices.conflict(engine.device, place.rank):
        raise LoadError(reason)
    device = devices.take(engine.device, place.rank)
    _check_precisions(engine)
    try:
        config = _read_config(model_dir)
        context_tokens = _context_tokens(config, engine.max_model_len)
        source = version_digest or _identity(model_dir)
        if not _DIGEST.fullmatch(source):
            raise LoadError(f"{source!r} is not a version digest")
        if reason := precision.conflict(config, engine):
            raise LoadError(f"{model_dir.name} cannot be loaded: {reason}")
        dtype = precision.of_weights(config, engine)
        if reason := parallel.conflict(config, place.parallel, dtype):
            raise LoadError(f"{model_dir.name} cannot be spread so: {reason}")
        identity = Identity(source, dtype, LAYOUT_VERSION, config, place.label)
        shard = shard_of(architecture_of(config).program(config), place, dtype)
        if device == CUDA and (reason := devices.unsupported(shard.program)):
            raise LoadError(f"{model_dir.name} cannot be loaded: {reason}")
        tensors = _attach_or_convert(model_dir, runtime_dir, identity, shard, progress)
    except ConfigError as error:
        raise LoadError(f"config.json of {model_dir.name}: {error}. {error.mend}") from error
    except (CheckpointError, PackingError, RuntimeFormatError, OSError) as error:
        raise LoadError(f"{model_dir.name} cannot be loaded: {error}") from error
    kv_dtype = precision.of_keys_and_values(config, engine)
    packed = as_packed(shard.program, dtype, tensors)
    return LoadedModel(config, context_tokens, dtype, kv_dtype, shard.program, packed, device)


def _check_precisions(engine: EngineSettings) -> None:
    for name, value, known in (("dtype", engine.dtype, PRECISIONS), ("kv_dtype", engine.kv_dtype, (AUTO, *DTYPES))):
        if value not in known:
            raise LoadError(f"{name} {value!r} is not supported; supported are {', '.join(known)}")


def _read_config(model_dir: Path) -> ModelConfig:
    config = parse_config((model_dir / "config.json").read_bytes())
    generation = model_dir / "generation_config.json"
    return add_generation_config(config, generation.read_bytes()) if generation.is_file() else config


def _context_tokens(config: ModelConfig, max_model_len: int | None) -> int:
    if max_model_len is None:
        return config.context_tokens
    if not 1 <= max_model_len <= config.context_tokens:
        raise LoadError(f"max_model_len {max_model_len} is not between 1 and the model's {config.context_tokens}")
    return max_model_len


def _identity(model_dir: Path) -> str:
    """Name the folder's files as they lie on this disk: changing one changes its inode or its change time."""
    identity = hashlib.sha256()
    for path in [model_dir / "config.json", *weight_files(model_dir)]:
        stat = path.stat()
        identity.update(f"{path.name}:{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_ctime_ns}\n".encode())
    return f"local-{identity.hexdigest()[:32]}"


def _attach_or_convert(
    model_dir: Path, runtime_dir: Path, identity: Identity, shard: Shard, progress: Progress
) -> dict[str, Tensor]:
    folder = runtime_dir / identity.folder_name
    try:
        return _attach(folder, identity, progress)
    except FileNotFoundError:
        pass
    except RuntimeFormatError as error:
        _log.warning("runtime_weights_discarded", folder=str(folder), reason=str(error))
        runtime_format.discard(folder)
    checkpoint = Checkpoint(model_dir, identity.config)
    read_bytes: dict[str, int] = {}  # by name, for a tensor may be read more than once

    def read(name: str) -> Tensor:
        tensor = checkpoint.read(name)
        if name not in read_bytes:
            read_bytes[name] = tensor.nbytes
            progress(CONVERT, sum(read_bytes.values()), checkpoint.total_bytes)
        return tensor

    runtime_format.write(folder, identity, packed_tensors(identity.config, shard, identity.dtype, read))
    give_back_freed_memory()  # of the copies that packing made
    return _attach(folder, identity, progress)


def _attach(folder: Path, identity: Identity, progress: Progress) -> dict[str, Tensor]:
    weights = RuntimeWeights(folder, identity)
    tensors: dict[str, Tensor] = {}
    done_bytes = 0
    for name, tensor in weights.tensors():
        tensors[name] = tensor
        done_bytes += tensor.nbytes
        progress("attach", done_bytes, weights.header.blob_bytes)
    return tensors
