"""Talking to a running supervisor over its control socket."""

import fcntl
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stack.home import Home, StackError, chosen


def call(home: Home, name: str, *, service: str = "", timeout_s: float = 60.0) -> dict[str, Any] | None:
    """Ask the supervisor; None when none runs.

    Raises:
        StackError: the supervisor refused the call, naming the services there are, or did not answer in time.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(home.socket_path))
            connection.sendall(json.dumps({"call": name, "name": service}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile("rb").readline() or b"null")
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except TimeoutError as error:
            what = service or "The stack"
            raise StackError(f"{what} did not get there in {timeout_s:.0f} s; see {home.root / 'logs'}.") from error
    if answer and "error" in answer:
        raise StackError(str(answer["error"]))
    return answer


def running_settings(home: Home) -> dict[str, str] | None:
    """Return the settings that the running stack was started with; None when none runs."""
    answer = call(home, "status")
    if answer is None:
        return None
    raw = Path(f"/proc/{answer['pid']}/environ").read_bytes().decode(errors="surrogateescape")
    return chosen(dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry))


@contextmanager
def single_command(home: Home) -> Iterator[None]:
    """Hold the home's lock, so that two ``make up`` at once do not start two stacks.

    Raises:
        StackError: another command holds it.
    """
    with (home.root / "run" / "command.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StackError(f"Another make up or make down works on {home.root}. Wait for it to end.") from error
        yield
