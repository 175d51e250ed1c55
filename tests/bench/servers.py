"""The servers a benchmark drives: our worker, and peers in environments of their own (``make peers``)."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

REPOSITORY = Path(__file__).resolve().parents[2]
PEERS = Path(os.environ.get("PAGODA_PEERS_DIR", REPOSITORY / "var" / "peers"))
_START_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Server:
    """A running server. ``model`` is the name it wants to hear."""

    name: str
    base_url: str
    model: str


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(name: str, argv: Sequence[str], port: int, log_dir: Path, extra: dict[str, str]) -> Iterator[Server]:
    base_url = f"http://127.0.0.1:{port}"
    with (log_dir / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            argv, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **extra}, cwd=REPOSITORY
        )
        try:
            yield Server(name, base_url, _wait_for_model(process, base_url, Path(log.name)))
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_for_model(process: subprocess.Popen[bytes], base_url: str, log: Path) -> str:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{base_url}/health", timeout=2).status_code == httpx.codes.OK:
                return str(httpx.get(f"{base_url}/v1/models", timeout=2).json()["data"][0]["id"])
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start; see {log}")


def pagoda(model_dir: Path, log_dir: Path, dtype: str) -> AbstractContextManager[Server]:
    """Our own worker, alone on TCP."""
    port = _free_port()
    argv = [sys.executable, "-m", "dataplane.worker", "--model", str(model_dir), "--port", str(port)]
    argv += ["--dtype", dtype, "--max-model-len", "1024", "--max-num-seqs", "32", "--no-prefix-cache"]
    return _running(f"pagoda-{dtype}", argv, port, log_dir, {})


def vllm(model_dir: Path, log_dir: Path) -> AbstractContextManager[Server]:
    """VLLM on CPU at fp32, installed by ``make peers``."""
    port = _free_port()
    argv = [str(PEERS / "vllm" / "bin" / "vllm"), "serve", str(model_dir), "--port", str(port), "--dtype", "float32"]
    argv += ["--max-model-len", "1024", "--max-num-seqs", "32", "--no-enable-prefix-caching"]
    extra = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{PEERS / 'vllm' / 'bin'}:{os.environ['PATH']}",
    }
    return _running("vllm-fp32", argv, port, log_dir, extra)
