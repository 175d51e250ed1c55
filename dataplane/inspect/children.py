"""Runs one piece of work in a forked child inside the sandbox, and says how it ended.

A fork, and no new program, since the modules are loaded already; what forks has one thread and has read nothing of a
stranger, so there is nothing to inherit but code. The child sends lines on a pipe: news while it works, then its
result.
"""

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from dataplane import sandbox

_MAX_LINE_BYTES = 8 * 1024 * 1024
_READ_BYTES = 1 << 16
_NEWS, _RESULT = b"+", b"="
_OUT_OF_MEMORY, _FAILED = 71, 70
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)

Tell = Callable[[bytes], None]
"""Sends one line of news."""


class Ended(NamedTuple):
    """How a child ended: with a ``result``, or, where that is None, by ``cause`` (a phrase whose subject is the work).

    ``theirs`` says that it met a limit, or that a library crashed: the fault of what was read. Otherwise it is ours, or
    the machine's.
    """

    result: bytes | None
    cause: str = ""
    theirs: bool = False


def run(
    work: Callable[[Tell], bytes], limits: sandbox.Limits, *, deadline_s: float, on_news: Tell, quiet: bool = False
) -> Ended:
    """Run ``work`` in a child and wait for it.

    Args:
        work: gets a function for news, returns its result; neither may have a newline.
        limits: of the child.
        deadline_s: wall clock after which it is killed.
        on_news: told each line of news.
        quiet: whether what the child writes to its standard error is dropped: a library's panic may quote its input.
    """
    incoming, outgoing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(incoming)
        _work(work, limits, outgoing, parent, quiet)
    os.close(outgoing)
    try:
        result = _receive(incoming, time.monotonic() + deadline_s, on_news)
    except TimeoutError:
        return Ended(None, f"takes more than {deadline_s:g} s", theirs=True)
    finally:
        os.close(incoming)
        os.kill(child, signal.SIGKILL)  # not waited for yet, so the number is still its own
        _, status = os.waitpid(child, 0)
    return Ended(result) if result is not None else _death(os.waitstatus_to_exitcode(status), limits)


def _work(work: Callable[[Tell], bytes], limits: sandbox.Limits, outgoing: int, parent: int, quiet: bool) -> NoReturn:
    code = _FAILED
    try:
        sandbox.die_with_parent()
        if os.getppid() != parent:  # it died before we asked
            os._exit(code)
        if quiet:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        sandbox.enter(limits)
        result = work(lambda line: _send(outgoing, _NEWS + line))
        _send(outgoing, _RESULT + result)
        code = 0
    except MemoryError:
        code = _OUT_OF_MEMORY
    except BaseException:  # noqa: BLE001 - nothing may go on in this process as if it were the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _send(descriptor: int, line: bytes) -> None:
    raw = memoryview(line + b"\n")
    while raw:
        raw = raw[os.write(descriptor, raw) :]


def _receive(incoming: int, deadline: float, on_news: Tell) -> bytes | None:
    """Return the result, or None when the child ends without one."""
    buffer = bytearray()
    readable = select.poll()
    readable.register(incoming, select.POLLIN)
    while True:
        if not readable.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        part = os.read(incoming, _READ_BYTES)
        if not part:
            return None
        buffer += part
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            if line.startswith(_RESULT):
                return line[1:]
            on_news(line[1:])
        if len(buffer) > _MAX_LINE_BYTES:
            return None


def _death(code: int, limits: sandbox.Limits) -> Ended:
    if code == _OUT_OF_MEMORY:
        return Ended(None, f"takes more than {limits.memory_bytes >> 20} MiB of memory", theirs=True)
    if code == -signal.SIGXCPU:
        return Ended(None, f"takes more than {limits.cpu_s} s of processor time", theirs=True)
    if -code in _CRASHES:
        return Ended(None, f"ends its process ({signal.Signals(-code).name})", theirs=True)
    return Ended(None, f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}")
