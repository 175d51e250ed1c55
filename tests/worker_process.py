"""A real worker process for tests: start it on a folder, wait until it serves, stop it by its process id."""

import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from dataplane.contracts.replica import ControlAnswer, ControlCall, GetStatus, Status
from dataplane.contracts.usage import RecordKind, UsageRecord
from dataplane.contracts.wire import FrameReader, frame
from dataplane.spool import segment

TIMEOUT_S = 180.0
"""For a broken worker, not for a slow machine."""
SLOW_STEPS = "engine.step=delay:50@3+"
"""A failpoint with which a long answer takes minutes: it still runs when a test that was held up does what ends it."""


class WorkerProcess:
    """``python -m dataplane.worker`` with its files in one folder.

    Attributes:
        port: of ``http://127.0.0.1``, once it serves.
        socket: the trusted door.
        control_socket: where the fleet would call.
        spool_dir: where its usage records are.
        log_path: what it wrote to standard error.

    Args:
        folder: short enough for Unix sockets; the worker's files go here.
        model: a model folder; None starts a worker that waits warm on its control socket.
        arguments: added to the command line.
        environment: added to the environment.
        alone: as a person starts it: no Unix sockets and no spool.
    """

    def __init__(
        self,
        folder: Path,
        model: Path | None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self.folder = folder
        self.model = model
        self.port = 0
        self.socket = folder / "http.sock"
        self.control_socket = folder / "control.sock"
        self.spool_dir = folder / "spool"
        self.log_path = folder / "worker.log"
        self._arguments = list(arguments) if alone else [*self._fleet_arguments(), *arguments]
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the worker is not started"
        return self._process

    @property
    def name(self) -> str:
        """What clients call the model."""
        assert self.model is not None
        return self.model.name

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _fleet_arguments(self) -> list[str]:
        return [
            "--socket", str(self.socket), "--control-socket", str(self.control_socket),
            "--spool-dir", str(self.spool_dir),
        ]  # fmt: skip

    def start(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "dataplane.worker", "--port", "0"]
        command += ["--runtime-dir", str(self.folder / "runtime"), *self._arguments]
        if self.model is not None:
            command += ["--model", str(self.model)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "OMP_NUM_THREADS": "1", **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def wait_ready(self) -> str:
        """Wait until it serves its model, and return the line it prints; warm ones answer on their control socket."""
        deadline = time.monotonic() + TIMEOUT_S
        if self.model is None:
            while not self._answers():
                self._check_alive(deadline)
                time.sleep(0.02)
            return ""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not selector.select(timeout=0.5):
                self._check_alive(deadline)
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(TIMEOUT_S)  # its end of the pipe is closed: it is about to exit
        self._check_alive(deadline)
        self.port = int(line.split("http://")[1].split(":")[1].split("/")[0])
        return line

    def _answers(self) -> bool:
        """Say whether the control socket takes calls: a moment passes between its path and its listening."""
        with suppress(FileNotFoundError, ConnectionRefusedError):
            self.status()
            return True
        return False

    def _check_alive(self, deadline: float) -> None:
        ended = self.process.poll()
        if ended is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the worker did not start (exit {ended}): {self.log_path.read_text()[-4000:]}")

    def client(self, timeout_s: float = 60.0) -> httpx.Client:
        """A client of the untrusted door."""
        return httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False)

    def trusted_client(self, timeout_s: float = 60.0) -> httpx.Client:
        """A client of the trusted door."""
        transport = httpx.HTTPTransport(uds=str(self.socket))
        return httpx.Client(base_url="http://worker", transport=transport, timeout=timeout_s, trust_env=False)

    def trusted_async_client(self, timeout_s: float = 60.0) -> httpx.AsyncClient:
        """An async client of the trusted door."""
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        return httpx.AsyncClient(base_url="http://worker", transport=transport, timeout=timeout_s, trust_env=False)

    def control(self, call: ControlCall) -> ControlAnswer:
        """Make one call on the control socket."""
        frames: FrameReader[ControlAnswer] = FrameReader(ControlAnswer)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(self.control_socket))
            connection.sendall(frame(call))
            while data := connection.recv(65536):
                for answer in frames.feed(data):
                    return answer
        raise ConnectionError("the worker closed its control socket")

    def status(self) -> Status:
        """What it says of itself."""
        answer = self.control(GetStatus())
        assert isinstance(answer, Status)
        return answer

    def wait_status(self, wanted: Callable[[Status], bool], timeout_s: float = TIMEOUT_S) -> Status:
        """Ask until its status is as ``wanted``."""
        deadline = time.monotonic() + timeout_s
        while not wanted(status := self.status()):
            assert time.monotonic() < deadline, status
            time.sleep(0.01)
        return status

    def wait_health(self, status_code: int) -> None:
        """Ask until ``/health`` answers so."""
        deadline = time.monotonic() + TIMEOUT_S
        with self.trusted_client() as client:
            while (answer := client.get("/health")).status_code != status_code:
                assert time.monotonic() < deadline, answer.text
                time.sleep(0.01)

    def records(self, request_id: str | None = None) -> list[UsageRecord]:
        """The usage records in its spool, of one request or of all."""
        paths = sorted(self.spool_dir.glob(f"*/*{segment.SUFFIX}"))
        found = [record for path in paths for record in segment.read(path, 0, 10**6).records]
        return [record for record in found if request_id in (None, record.request_id)]

    def wait_records(self, request_id: str, kind: RecordKind, count: int = 1) -> list[UsageRecord]:
        """Wait until a request has ``count`` records of ``kind``, and return all of it."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = self.records(request_id)
            if sum(record.kind is kind for record in found) >= count:
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.01)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stop the engine's process meanwhile, so that no request ends before the test has looked, however late."""
        engine = self.child("dataplane.worker.engine_process")
        engine.suspend()
        try:
            yield
        finally:
            engine.resume()

    def child(self, module: str) -> psutil.Process:
        """Return the child that runs ``module``: ``dataplane.worker.engine_process`` or ``dataplane.text.child``."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            if module in process.cmdline():
                return process
        raise LookupError(module)

    def wait_stopped(self, module: str) -> None:
        """Wait until the child that runs ``module`` is stopped, as by a failpoint."""
        child, deadline = self.child(module), time.monotonic() + TIMEOUT_S
        while child.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline, child
            time.sleep(0.01)

    def stop(self, timeout_s: float = TIMEOUT_S) -> int:
        """Drain it and return its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self._wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Crash the server process; its children follow it."""
        if self.process.poll() is None:
            self.process.kill()
        self._wait(TIMEOUT_S)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait until it ends by itself and return its exit status."""
        return self._wait(timeout_s)

    def _wait(self, timeout_s: float) -> int:
        status = self.process.wait(timeout_s)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status
