"""What a replica really takes: the peak of its processes' resident memory, read from the kernel.

Measured is the whole life of a real worker alone on TCP: its start, the conversion of the weights if it is the first,
the load, and one request that fills the context with its prompt and 16 tokens of output, on a KV pool of that context.
Each process counts with its own high-water mark (``VmHWM`` of proc_pid_status(5), kept by the kernel, so nothing falls
between two looks), mapped files included, whatever other programs share them; a file that several of the replica's
processes have mapped counts once. ``held`` is the same without any file.
"""

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
from msgspec.structs import replace
from worker_process import WorkerProcess

from dataplane.contracts import memory
from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.memory import Plan
from dataplane.contracts.model_config import ModelConfig, parse_config

CONFIGURATIONS = (
    *((dtype, context) for dtype in ("fp32", "bf16") for context in (512, 2048, 8192)),
    *((dtype, 2048) for dtype in ("int8", "int4")),
)
OUTPUT_TOKENS = 16
MOST_ERROR = 0.05
"""Of the planner, to either side."""
_MIB = 1024**2
_ANSWER_TIMEOUT_S = 1800.0
_PROBE_WORDS = 32


@dataclass(frozen=True)
class Measured:
    """Bytes. ``processes`` are the peaks of each process with what it has mapped at the end, by its module."""

    peak_bytes: int
    held_bytes: int
    processes: dict[str, tuple[int, int]]


def read_config(model_dir: Path) -> ModelConfig:
    """Return the config of a model folder."""
    return parse_config((model_dir / "config.json").read_bytes())


def settings(config: ModelConfig, dtype: str, context_tokens: int) -> EngineSettings:
    """Return a deployment whose KV pool holds one context, otherwise as deployments are by default."""
    engine = EngineSettings(dtype=dtype, max_model_len=context_tokens)
    blocks = -(-context_tokens // engine.block_size)
    return replace(engine, kv_memory_mb=-(-blocks * memory.block_bytes(config, engine) // _MIB))


def predicted(model_dir: Path, dtype: str, context_tokens: int) -> Plan:
    """Return what the planner says of that deployment."""
    config = read_config(model_dir)
    return memory.plan(config, settings(config, dtype, context_tokens))


def measured(model_dir: Path, runtime_dir: Path, dtype: str, context_tokens: int) -> Measured:
    """Run a worker of that deployment through one request that fills its context, and return what it took at most."""
    engine = settings(read_config(model_dir), dtype, context_tokens)
    arguments = [
        "--dtype", dtype, "--max-model-len", str(context_tokens), "--kv-memory-mb", str(engine.kv_memory_mb),
        "--runtime-dir", str(runtime_dir),
    ]  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="pagoda-memory-") as folder,
        WorkerProcess(Path(folder), model_dir, arguments, alone=True) as worker,
    ):
        _fill_context(worker, context_tokens)
        return _read(worker.process.pid)


def _fill_context(worker: WorkerProcess, context_tokens: int) -> None:
    """Send the longest prompt that leaves room for the output."""
    room_tokens = context_tokens - OUTPUT_TOKENS
    words = room_tokens * _PROBE_WORDS // _filled_tokens(worker, _PROBE_WORDS, output_tokens=0)
    filled_tokens = _filled_tokens(worker, words, output_tokens=OUTPUT_TOKENS)
    assert filled_tokens > room_tokens - OUTPUT_TOKENS, f"only {filled_tokens} tokens of {context_tokens} were filled"


def _filled_tokens(worker: WorkerProcess, words: int, *, output_tokens: int) -> int:
    """Return the tokens of a prompt of so many words, with up to so many of output."""
    body = {
        "model": worker.name, "prompt": " the" * words, "max_tokens": max(1, output_tokens), "temperature": 0.7,
        "top_p": 0.9, "seed": 1,
    }  # fmt: skip
    with worker.client(_ANSWER_TIMEOUT_S) as client:
        usage = client.post("/v1/completions", json=body).raise_for_status().json()["usage"]
    return int(usage["total_tokens"] if output_tokens else usage["prompt_tokens"])


def _read(pid: int) -> Measured:
    server = psutil.Process(pid)
    processes = {_module(each): each.pid for each in [server, *server.children(recursive=True)]}
    peaks = {name: _high_water_bytes(each) for name, each in processes.items()}
    files = {name: _mapped_bytes(each) for name, each in processes.items()}
    once: Counter[str] = Counter()
    for mapped in files.values():
        once |= mapped  # the larger count of each file
    held_bytes = sum(peaks[name] - files[name].total() for name in processes)
    return Measured(
        peak_bytes=held_bytes + once.total(),
        held_bytes=held_bytes,
        processes={name: (peaks[name], files[name].total()) for name in processes},
    )


def _module(process: psutil.Process) -> str:
    return next(word for word in process.cmdline() if word.startswith("dataplane."))


def _high_water_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _mapped_bytes(pid: int) -> Counter[str]:
    """Return the resident pages of each mapped file that the process has not made its own, see proc_pid_smaps(5)."""
    mapped: Counter[str] = Counter()
    path, resident_bytes = "", 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            path = words[5] if len(words) > 5 else ""
        elif words[0] == "Rss:":
            resident_bytes = int(words[1]) * 1024
        elif words[0] == "Anonymous:" and path.startswith("/"):
            mapped[path] += resident_bytes - int(words[1]) * 1024
    return mapped
