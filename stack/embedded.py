"""What the embedded servers have in common: a command in the foreground, a first answer, an end."""

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from stack.home import StackError

_START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 30.0
_LOOK_S = 0.05


class EmbeddedServer(ABC):
    """One server on 127.0.0.1:``port``, its output in ``log_path``.

    The supervisor runs :meth:`command` and asks :meth:`answers`; tests start, stop and crash a server themselves.
    """

    name: str
    stop_signal = signal.SIGTERM
    crash_signal = signal.SIGKILL

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
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def prepare(self) -> None:  # noqa: B027 - a server may need nothing
        """Make what the server needs before its first start."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def answers(self) -> bool:
        """Say whether the server answers now."""

    def start(self) -> None:
        """Start the server and wait for its first answer.

        Raises:
            StackError: it ended, or took longer than half a minute.
        """
        self.prepare()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.answers():
            if self._process.poll() is not None:
                raise StackError(f"{self.name} ended at its start; the reason is in {self.log_path}")
            if time.monotonic() > deadline:
                raise StackError(f"{self.name} did not answer in {_START_TIMEOUT_S:.0f} s; see {self.log_path}")
            time.sleep(_LOOK_S)

    def stop(self) -> None:
        """End the server in an orderly way."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """Crash the server at once, its children too."""
        self._end(self.crash_signal)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(timeout=_END_TIMEOUT_S)
        self._process = None
