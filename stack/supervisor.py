"""One small supervisor: starts services in the order of their needs, restarts what ends, stops what it started.

It listens on a Unix socket for one JSON line per connection and answers with one: ``status``, ``stop``, ``start`` and
``down``. When it dies its children are told by the kernel, so nothing stays behind.
"""

import asyncio
import ctypes
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_PR_SET_PDEATHSIG = 1
_PROBE_INTERVAL_S = 0.1
_BACKOFF_FIRST_S, _BACKOFF_MOST_S = 0.2, 10.0
_STABLE_AFTER_S = 30.0

State = Literal["waiting", "starting", "ready", "stopped", "done", "failed", "refused"]


@dataclass(frozen=True)
class Service:
    """A program to keep running, or with ``once`` to run to its end before others start.

    What ends is tried again, unless a ``once`` program ends with ``os.EX_CONFIG``: a person has to change something.

    Attributes:
        needs: services that must be ready (or done) first.
        ready: asked again and again after the start until it says True; None means ready as soon as it runs.
        stop_timeout_s: seconds from the stop signal to SIGKILL.
    """

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    needs: tuple[str, ...] = ()
    ready: Callable[[], Awaitable[bool]] | None = None
    once: bool = False
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 20.0


@dataclass
class _Run:
    """What the supervisor knows of one service."""

    service: Service
    state: State = "waiting"
    since_s: float = field(default_factory=time.time)
    restarts: int = -1
    log_from: int = 0
    process: asyncio.subprocess.Process | None = None
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def become(self, state: State) -> None:
        self.state, self.since_s = state, time.time()
        if state in ("ready", "done"):
            self.settled.set()
        else:
            self.settled.clear()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Supervisor:
    """Runs ``services``, their logs in ``log_dir``, its control socket at ``socket_path``."""

    def __init__(self, services: Sequence[Service], log_dir: Path, socket_path: Path, cwd: Path) -> None:
        self._runs = {service.name: _Run(service) for service in services}
        self._log_dir = log_dir
        self._socket_path = socket_path
        self._cwd = cwd
        self._down = asyncio.Event()

    async def run(self) -> None:
        """Serve until told to go down; returns when every child has ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._down.set)
        self._socket_path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._answer, path=str(self._socket_path))
        os.chmod(self._socket_path, 0o600)
        for run in self._runs.values():
            run.wanted.set()
        tasks = [asyncio.create_task(self._supervise(run)) for run in self._runs.values()]
        await self._down.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stop_all()
        server.close()
        self._socket_path.unlink(missing_ok=True)

    async def _stop_all(self) -> None:
        """Stop what others need last: a service ends once nothing that runs needs it."""
        stopping: dict[str, asyncio.Task[None]] = {}

        async def stop(run: _Run) -> None:
            users = [name for name, other in self._runs.items() if run.service.name in other.service.needs]
            await asyncio.gather(*(stopping[name] for name in users))
            await self._stop(run)

        for name in reversed(self._topological()):
            stopping[name] = asyncio.create_task(stop(self._runs[name]))
        await asyncio.gather(*stopping.values())

    def _topological(self) -> list[str]:
        ordered: list[str] = []

        def visit(name: str) -> None:
            if name not in ordered:
                for need in self._runs[name].service.needs:
                    visit(need)
                ordered.append(name)

        for name in self._runs:
            visit(name)
        return ordered

    async def _supervise(self, run: _Run) -> None:
        backoff_s = _BACKOFF_FIRST_S
        while True:
            await run.wanted.wait()
            for need in run.service.needs:
                await self._runs[need].settled.wait()
            started_s = time.monotonic()
            code = await self._run_until_exit(run)
            if run.service.once and code == 0:
                run.become("done")
                return
            if run.service.once and code == os.EX_CONFIG:
                run.wanted.clear()
                run.become("refused")
                continue
            if not run.wanted.is_set():
                run.become("stopped")
                continue
            run.become("failed")
            if time.monotonic() - started_s > _STABLE_AFTER_S:
                backoff_s = _BACKOFF_FIRST_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _BACKOFF_MOST_S)

    async def _run_until_exit(self, run: _Run) -> int:
        service = run.service
        run.become("starting")
        run.restarts += 1
        with (self._log_dir / f"{service.name}.log").open("ab") as log:
            run.log_from = log.tell()
            run.process = await asyncio.create_subprocess_exec(
                *service.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._cwd,
                env=service.environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        exited = asyncio.create_task(run.process.wait())
        try:
            while not service.once and not exited.done():
                if service.ready is None or await service.ready():
                    run.become("ready")
                    break
                await asyncio.wait([exited], timeout=_PROBE_INTERVAL_S)
            return await exited
        finally:
            exited.cancel()

    async def _stop(self, run: _Run) -> None:
        process = run.process
        if process is None or process.returncode is not None:
            return
        process.send_signal(run.service.stop_signal)
        try:
            await asyncio.wait_for(process.wait(), run.service.stop_timeout_s)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            call = json.loads(await reader.readline())
            answer = await self._call(str(call.get("call")), str(call.get("name", "")))
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ValueError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _call(self, call: str, name: str) -> dict[str, object]:
        if call == "status":
            return {"pid": os.getpid(), "services": {name: self._describe(run) for name, run in self._runs.items()}}
        if call == "down":
            self._down.set()
            return {"pid": os.getpid()}
        run = self._runs.get(name)
        if run is None or call not in ("stop", "start"):
            return {"error": f"no call {call!r} for {name!r}; services are {', '.join(self._runs)}"}
        if call == "start":
            run.wanted.set()
            await run.settled.wait()
        else:
            run.wanted.clear()
            await self._stop(run)
        return self._describe(run)

    @staticmethod
    def _describe(run: _Run) -> dict[str, object]:
        pid = run.process.pid if run.process is not None and run.process.returncode is None else None
        return {
            "state": run.state,
            "pid": pid,
            "restarts": max(run.restarts, 0),
            "since_s": run.since_s,
            "log_from": run.log_from,
        }
