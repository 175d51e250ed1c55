"""Workers as supervised processes of this machine.

Each runs in a session of its own, with an environment that holds only what a worker needs. The kernel kills it when
the fleet dies (``leash``); what it left behind is found by the mark in its environment and swept at the next start.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

import dataplane
from dataplane.fleet.backends import Process, StartError, WorkerSpec

WORKER_COMMAND = (sys.executable, "-m", "dataplane.worker")
_MARK = "PAGODA_FLEET_HOME"
_INHERITED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OMP_WAIT_POLICY",
    "CUDA_VISIBLE_DEVICES", "PAGODA_FAILPOINTS", "PAGODA_FAILPOINTS_FILE",
)  # fmt: skip
_KEPT_LOGS = 40
_TAIL_BYTES = 8192
_END_LOOK_S = 0.01
_END_LOOKS = 500
_MAX_WORDS_CHARS = 300
_LEASH = Path(__file__).with_name("leash.py")
_log = structlog.get_logger(__name__)


class LocalProcess:
    """A worker of this machine, leader of its own session and process group."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its group and session."""
        return self._process.pid

    async def wait(self) -> str:
        """Return how the worker ended, with its last words; its children are gone by then too."""
        status = await self._process.wait()
        await _end_session(self.pid)
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        last_words = _last_words(self._log) if status > 0 else ""
        return f"{how}: {last_words}" if last_words else how

    def terminate(self) -> None:
        """Send SIGTERM to the worker itself; its children are its own affair."""
        if self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the whole session."""
        if self._process.returncode is None:
            _kill_session(self.pid)


class LocalBackend:
    """Starts workers on this machine.

    Args:
        home: state folder; logs go to ``logs``, spools to ``spool``, packed weights to ``runtime``.
        control_url: where a worker ships its usage records.
        internal_secret: the bearer it does so with.
        command: the worker program and its first arguments.
        environ: what the inherited variables are read from.
    """

    def __init__(
        self,
        *,
        home: Path,
        control_url: str,
        internal_secret: str,
        command: Sequence[str] = WORKER_COMMAND,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._home = home
        self._control_url = control_url
        self._command = tuple(command)
        self._environment = {name: environ[name] for name in _INHERITED if name in environ} | {
            "PAGODA_INTERNAL_SECRET": internal_secret,
            "PYTHONPATH": str(Path(dataplane.__file__).parent.parent),
            "PYTHONUNBUFFERED": "1",
            _MARK: str(home),
        }

    async def start(self, spec: WorkerSpec) -> Process:
        """Start a worker without a model.

        Raises:
            StartError: no process or no log file could be made.
        """
        log = self._home / "logs" / f"replica-{spec.replica_id}.log"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            _prune_logs(log.parent)
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), *self._command, *self._arguments(spec),
                    stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                    env=self._environment, cwd=self._home, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise StartError(f"a worker process could not be started: {error}") from error
        return LocalProcess(process, log)

    def _arguments(self, spec: WorkerSpec) -> list[str]:
        return [
            "--socket", str(spec.http_socket), "--control-socket", str(spec.control_socket),
            "--spool-dir", str(self._home / "spool"), "--runtime-dir", str(self._home / "runtime"),
            "--control-url", self._control_url, "--replica-id", spec.replica_id,
        ]  # fmt: skip

    async def sweep(self) -> int:
        """Kill every session that holds a process marked with this home. Safe only while no other fleet runs on it."""
        sessions = set(_marked_sessions(str(self._home)))
        count = sum([await _end_session(session) for session in sessions])
        if count:
            _log.warning("fleet.strays_killed", processes=count)
        return count


def _marked_sessions(home: str) -> Iterator[int]:
    mark = f"{_MARK}={home}".encode()
    for pid, session in _running():
        try:
            marked = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended, or is another user's
            continue
        if marked and session != os.getsid(0):
            yield session


def _running() -> Iterator[tuple[int, int]]:
    """Yield (process id, session id) of every process of this machine that has not ended."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            # proc(5): pid (name) state ppid pgrp session ...; the name may hold blanks and parentheses.
            state, _, _, session = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if state not in "ZX":
            yield int(name), int(session)


def _kill_session(session: int) -> int:
    """Send SIGKILL to every process of ``session``, whatever groups it made; return how many there were."""
    members = [pid for pid, of in _running() if of == session]
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(members)


async def _end_session(session: int) -> int:
    """Kill a session and wait until it is empty; return how many processes it had."""
    count = left = _kill_session(session)
    for _ in range(_END_LOOKS):
        if not left:
            break
        await asyncio.sleep(_END_LOOK_S)
        left = _kill_session(session)
    if left:
        _log.error("fleet.processes_do_not_die", session=session, processes=left)
    return count


class _LogLine(msgspec.Struct):
    event: str
    level: str = ""
    detail: str = ""


def _last_words(log: Path) -> str:
    """Return why a worker gave up: its last logged error, or a last line outside its log, as a traceback's."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    for line in reversed(lines):
        try:
            logged = msgspec.json.decode(line, type=_LogLine)
        except msgspec.DecodeError:
            if line.strip():
                return line.strip()[:_MAX_WORDS_CHARS]
            continue
        if logged.level in {"error", "critical"}:
            return (logged.detail or logged.event)[:_MAX_WORDS_CHARS]
    return ""


def _prune_logs(folder: Path) -> None:
    logs = sorted(folder.glob("replica-*.log"), key=lambda path: path.name)
    for path in logs[: -_KEPT_LOGS + 1]:
        path.unlink(missing_ok=True)
