"""Runs one piece of work in a forked child inside the sandbox, and says how it ended.

A fork, and no new program, since the modules are loaded already; what forks has one thread and has read nothing of a
stranger, so there is nothing to inherit but code. The child sends lines on a pipe: news while it works, then its
result.
"""

import os
import resource
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
_OUT_OF_MEMORY, _CRASHED = 71, 70

Tell = Callable[[bytes], None]
"""Sends one line of news."""


class Ended(NamedTuple):
    """How a child ended: with a ``result``, or, where that is None, by ``cause`` (a phrase whose subject is the work).

    ``at_limit`` says that the cause is a limit, or an end that a library chose: the fault of what was read, not ours.
    """

    result: bytes | None
    cause: str = ""
    at_limit: bool = False


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
        result = None
    finally:
        os.close(incoming)
        os.kill(child, signal.SIGKILL)  # not waited for yet, so the number is still its own
        _, status, usage = os.wait4(child, 0)
    if result is not None:
        return Ended(result)
    return _judge(os.waitstatus_to_exitcode(status), usage, limits, deadline_s)


def _work(work: Callable[[Tell], bytes], limits: sandbox.Limits, outgoing: int, parent: int, quiet: bool) -> NoReturn:
    code = _CRASHED
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


def _judge(code: int, usage: resource.struct_rusage, limits: sandbox.Limits, deadline_s: float) -> Ended:
    used_s = usage.ru_utime + usage.ru_stime
    if code == _OUT_OF_MEMORY:
        return Ended(None, f"takes more than {limits.memory_bytes >> 20} MiB of memory", at_limit=True)
    if limits.cpu_s is not None and used_s >= limits.cpu_s - 0.1 and code < 0:
        return Ended(None, f"takes more than {limits.cpu_s} s of processor time", at_limit=True)
    if code == -signal.SIGABRT:
        return Ended(None, "ends its process", at_limit=True)
    if code == -signal.SIGKILL:
        return Ended(None, f"takes more than {deadline_s:.0f} s", at_limit=True)
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return Ended(None, how)
