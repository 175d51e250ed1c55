"""The servers a benchmark drives: our worker, and peers in environments of their own (``make peers``).

Each is a process group that is started when it is first measured and stays until the end. All are stopped (SIGSTOP) but
the one that is measured: whatever an idle server does, on a timer or in threads that spin for a while, it does not do
it on the processors of another.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import figures
import httpx
from client import Client
from workloads import Request, Workload

REPOSITORY = Path(__file__).resolve().parents[2]
PEERS = Path(os.environ.get("PAGODA_PEERS_DIR", REPOSITORY / "var" / "peers"))
RUNTIME = REPOSITORY / "var" / "bench" / "runtime"
"""Packed weights of our own servers."""
_VLLM, _LLAMA = PEERS / "vllm" / "bin", PEERS / "llama.cpp"
_SEQUENCES, _CONTEXT_TOKENS = 32, 1024
_START_TIMEOUT_S, _END_TIMEOUT_S, _LOOK_EVERY_S = 900.0, 20.0, 0.05


class ServerFailed(RuntimeError):
    """A server that did not start, or has ended; names its log."""


@dataclass(frozen=True)
class Recipe:
    """How a server is started.

    Attributes:
        argv: of a model folder and a port; one that takes no port is fed batches instead (:class:`StaticBatches`).
        program: what must be there.
        environment: added to ours.
        extra: fields that it wants in the bodies of requests.
        batches: it has no port.
        replicas: so many processes instead of one, each with one thread on one processor: together they have as many
            processors as one of the others, and each tenant calls its own.
    """

    argv: Callable[[Path, int], list[str]]
    program: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    batches: bool = False
    replicas: int = 1


def _pagoda(dtype: str, *options: str, context_tokens: int = _CONTEXT_TOKENS, replicas: int = 1) -> Recipe:
    def argv(model: Path, port: int) -> list[str]:
        command = [sys.executable, "-m", "dataplane.worker", "--model", str(model), "--port", str(port)]
        sizes = ["--max-model-len", str(context_tokens), "--max-num-seqs", str(_SEQUENCES)]
        return [*command, "--runtime-dir", str(RUNTIME), "--dtype", dtype, *sizes, *options]

    return Recipe(argv, Path(sys.executable), replicas=replicas)


def _vllm() -> Recipe:
    def argv(model: Path, port: int) -> list[str]:
        command = [str(_VLLM / "vllm"), "serve", str(model), "--port", str(port), "--dtype", "float32"]
        sizes = ["--max-model-len", str(_CONTEXT_TOKENS), "--max-num-seqs", str(_SEQUENCES)]
        return [*command, *sizes, "--no-enable-prefix-caching"]

    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        # Its own watch would take the minutes in which others are measured, and it is stopped, for a hang.
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{_VLLM}:{os.environ['PATH']}",
    }
    return Recipe(argv, _VLLM / "vllm", environment)


def _llama(name: str) -> Recipe:
    weights = _LLAMA / f"{name}.gguf"

    def argv(model: Path, port: int) -> list[str]:
        command = [str(_LLAMA / "llama-server"), "--model", str(weights), "--port", str(port)]
        threads = str(os.cpu_count())
        context = str(_SEQUENCES * _CONTEXT_TOKENS)
        return [*command, "-t", threads, "-tb", threads, "-np", str(_SEQUENCES), "-c", context, "-cb"]

    return Recipe(argv, weights, {"LD_LIBRARY_PATH": str(_LLAMA)}, {"cache_prompt": False})


def _transformers() -> Recipe:
    program = Path(__file__).with_name("static_batches.py")
    return Recipe(lambda model, port: [sys.executable, str(program), str(model)], program, batches=True)


def _start(way: str) -> Recipe:
    program = Path(__file__).with_name("starts.py")
    argv = [sys.executable, str(program), way]
    return Recipe(lambda model, port: [*argv, str(model), str(RUNTIME)], program, batches=True)


_ALONE = "--no-prefix-cache"
_TENANTS = (_ALONE, "--trust-tenant-header", "--queue-limit", "4096")
"""All calls of a flood wait: where who comes first is served first, those that are counted stand behind them."""
_CACHE = ("--kv-memory-mb", "1024")
"""So much that all prompts of a run fit, and that servers which wait do not fill the machine's memory."""
_STARTS = {"pagoda-weights": "weights", "transformers-weights": "transformers", "pagoda-attach": "attach"}
RECIPES = {
    **{f"pagoda-{dtype}": _pagoda(dtype, _ALONE) for dtype in ("fp32", "fp16", "int8", "int4")},
    **{f"pagoda-{dtype}-cache": _pagoda(dtype, *_CACHE, context_tokens=2048) for dtype in ("fp32", "int8")},
    "pagoda-int8-tenants": _pagoda("int8", *_TENANTS),
    "pagoda-int8-dedicated": _pagoda("int8", *_TENANTS, replicas=4),
    "vllm-fp32": _vllm(),
    **{f"llama-{name}": _llama(name) for name in ("f16", "q8_0", "q4_0")},
    "transformers-fp32": _transformers(),
    **{name: _start(way) for name, way in _STARTS.items()},
}
"""By name. llama.cpp's weights are those of the same model that its own tool made of the package's."""


class Server(ABC):
    """A process group that can be stopped and resumed. It ends with this process, however that ends."""

    def __init__(self, name: str, recipe: Recipe, model: Path, ports: Sequence[int], log: Path) -> None:
        self.name = name
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []
        for place, port in enumerate(ports):
            alone = recipe.replicas == 1
            with log.open("ab" if place else "wb") as file:
                process = subprocess.Popen(
                    [*([] if alone else _on_processor(place)), *recipe.argv(model, port)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE if recipe.batches else file,
                    stderr=file,
                    env={**os.environ, **recipe.environment, **({} if alone else {"OMP_NUM_THREADS": "1"})},
                    cwd=REPOSITORY,
                    process_group=self._processes[0].pid if place else 0,
                )
            self._processes.append(process)
        # A group that is stopped would outlive us unseen: its guard reads a pipe that ends when we do.
        command = ["sh", "-c", 'cat; kill -s KILL -- "-$1"', "guard", str(self._processes[0].pid)]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    @abstractmethod
    def measure(self, workload: Workload) -> dict[str, float]:
        """Drive a workload and return its figures."""

    def stop(self) -> None:
        """Let it do nothing until it is resumed."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End it and all that it started."""
        self._guard.kill()
        self._guard.wait()
        self._signal(signal.SIGTERM)
        self.resume()
        with suppress(subprocess.TimeoutExpired):
            for process in self._processes:
                process.wait(timeout=_END_TIMEOUT_S)
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._processes[0].pid, number)

    def _failed(self) -> ServerFailed:
        return ServerFailed(f"{self.name} did not start, or has ended; see {self._log}")


class HttpServer(Server):
    """One that speaks OpenAI's API, once it is healthy."""

    def __init__(self, name: str, recipe: Recipe, model: Path, log: Path) -> None:
        ports = _free_ports(recipe.replicas)
        super().__init__(name, recipe, model, ports, log)
        base_urls = [f"http://127.0.0.1:{port}" for port in ports]
        try:
            models = [self._wait_for_model(base_url) for base_url in base_urls]
            self._client = Client(base_urls, models[0], dict(recipe.extra))
        except BaseException:
            self.end()
            raise

    def measure(self, workload: Workload) -> dict[str, float]:
        """Drive a workload; see :meth:`client.Client.run`."""
        return figures.summarise(self._client.run(workload))

    def _wait_for_model(self, base_url: str) -> str:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        with httpx.Client(base_url=base_url, timeout=20) as client:
            while time.monotonic() < deadline_s and all(process.poll() is None for process in self._processes):
                with suppress(httpx.HTTPError):
                    if client.get("/health").status_code == httpx.codes.OK:
                        return str(client.get("/v1/models").json()["data"][0]["id"])
                time.sleep(_LOOK_EVERY_S)
        raise self._failed()


class StaticBatches(Server):
    """A program that computes one batch after another: calls wait until a batch is full, and end with its longest."""

    def __init__(self, name: str, recipe: Recipe, model: Path, log: Path) -> None:
        super().__init__(name, recipe, model, [0], log)
        try:
            self._read()
        except BaseException:
            self.end()
            raise

    def measure(self, workload: Workload) -> dict[str, float]:
        """Compute the calls in batches of as many as there are callers; only tokens that were asked for count."""
        if workload.warm_up:
            self._compute(workload.warm_up)
        size = workload.callers or _SEQUENCES
        began_s = time.perf_counter()
        for start in range(0, len(workload.requests), size):
            self._compute(workload.requests[start : start + size])
        wall_s = time.perf_counter() - began_s
        tokens = sum(request.output_tokens for request in workload.requests)
        calls = len(workload.requests)
        rates = {"output_tokens_per_s": tokens / wall_s, "calls_per_s": calls / wall_s}
        return {"calls": calls, **{name: round(value, 4) for name, value in {"wall_s": wall_s, **rates}.items()}}

    def _compute(self, batch: list[Request]) -> None:
        longest = max(request.output_tokens for request in batch)
        line = json.dumps({"prompts": [request.prompt for request in batch], "output_tokens": longest}) + "\n"
        into = self._pipe(self._processes[0].stdin)
        into.write(line.encode())
        into.flush()
        self._read()

    def _read(self) -> None:
        if not self._pipe(self._processes[0].stdout).readline():
            raise self._failed()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


class Servers:
    """Those that were started so far.

    Args:
        model: the model folder.
        log_dir: where each writes ``NAME.log``.
    """

    def __init__(self, model: Path, log_dir: Path) -> None:
        self._model, self._log_dir = model, log_dir
        self._started: dict[str, Server] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for name in list(self._started):
            self.end(name)

    @contextmanager
    def awake(self, name: str) -> Iterator[Server]:
        """Run one server, and no other, within the context.

        Raises:
            ServerFailed: it did not start.
        """
        if name not in self._started:
            kind = StaticBatches if RECIPES[name].batches else HttpServer
            self._started[name] = kind(name, RECIPES[name], self._model, self._log_dir / f"{name}.log")
        server = self._started[name]
        server.resume()
        try:
            yield server
        finally:
            server.stop()

    def end(self, name: str) -> None:
        """End a server, if it runs; it is started anew when it is measured next."""
        if server := self._started.pop(name, None):
            server.end()


def is_installed(name: str) -> bool:
    """Say whether a server can be started."""
    return RECIPES[name].program.exists()


def measured_commit() -> str:
    """Name the code that is measured: the last commit that changed it, with a ``+`` where files differ from it."""
    measured = ["--", "dataplane", "constraints.txt"]
    commit = _git("log", "-1", "--format=%h", *measured)
    return f"{commit}+" if _git("status", "--porcelain", *measured) else commit


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _on_processor(place: int) -> list[str]:
    return ["taskset", "--cpu-list", str(place % (os.cpu_count() or 1))]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
