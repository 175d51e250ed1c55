"""Has a model folder judged in a throw-away child: a stranger's bytes are never parsed in this process.

The child is ``python -m dataplane.inspect DIR`` with an empty environment and a deadline; before it reads a byte it
limits its own memory, processor time, files and output (:mod:`dataplane.sandbox`), which a parent could only do after
the child has started. What comes back is decoded by a closed schema and checked again where this side relies on it.
"""

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from dataplane.contracts import verdict as contract
from dataplane.contracts.verdict import Progress, Verdict

_START_S = 420
_BYTES_PER_S = 4_000_000
"""Longer than the inspector gives its own children, so what takes too long is refused by it, and a stuck one ends."""
_JUDGED = (0, 1)
"""Exit codes of an inspector that reached a verdict: accepted, refused."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)
_QUIET_S = 5.0
_MAX_LINE_BYTES = 64 * 1024

Tell = Callable[[Progress | None], None]
"""Told of the child's progress, and with None at least every five seconds in which there was none."""


class InspectionFailed(Exception):
    """The child reached no verdict: it crashed, ran over a limit, or printed something else."""


def inspect(folder: Path, *, tell: Tell = lambda _: None) -> Verdict:
    """Return the verdict on ``folder``.

    Args:
        folder: a folder of model files.
        tell: see :data:`Tell`; what it raises ends the child.

    Raises:
        InspectionFailed: no verdict was reached; the message says how the child ended.
    """
    allowed_s = _START_S + _folder_bytes(folder) // _BYTES_PER_S
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code = _run(folder, output, errors, tell, allowed_s)
        output.seek(0)
        errors.seek(0)
        last_words = _last_line(errors.read())
        if code not in _JUDGED:
            raise InspectionFailed(f"the inspector {_ending(code)}: {last_words}")
        try:
            verdict = contract.decode(output.read())
        except msgspec.DecodeError as error:  # Python, too, ends with 1 after an exception
            raise InspectionFailed(f"the inspector printed no verdict ({error}): {last_words}") from error
    _check(verdict)
    return verdict


def _run(folder: Path, output: IO[bytes], errors: IO[bytes], tell: Tell, allowed_s: int) -> int:
    """Run the child to its end and return its exit code."""
    due = time.monotonic() + allowed_s
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as news:
        try:
            child = subprocess.Popen(
                [*_command(folder), f"--progress-fd={writing}"], stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                env={}, cwd="/", start_new_session=True, pass_fds=(writing,),
            )  # fmt: skip
        finally:
            os.close(writing)  # the child's own end is the only one left, so its end is the end of the news
        try:
            for progress in _progress(news, due):
                tell(progress)
            return child.wait(timeout=max(0.0, due - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise InspectionFailed(f"the inspector was stopped after {allowed_s} s without a verdict") from None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def _progress(news: IO[bytes], due: float) -> Iterator[Progress | None]:
    """Yield what comes in whole lines, until the end of the news or the deadline."""
    pending = b""
    while (left_s := due - time.monotonic()) > 0:
        if not select.select([news], [], [], min(left_s, _QUIET_S))[0]:
            yield None
            continue
        part = os.read(news.fileno(), _MAX_LINE_BYTES)
        if not part:
            return
        *lines, pending = (pending + part).split(b"\n")
        if len(pending) > _MAX_LINE_BYTES:
            raise InspectionFailed("the inspector wrote a line of progress that has no end")
        for line in lines:
            try:
                yield contract.decode_progress(line)
            except msgspec.DecodeError as error:
                raise InspectionFailed(f"the inspector wrote something else than progress: {error}") from error


def _command(folder: Path) -> list[str]:
    return [sys.executable, "-I", "-m", "dataplane.inspect", str(folder)]


def _check(verdict: Verdict) -> None:
    names = [file.name for file in verdict.files]
    if any(_FILE_NAME.fullmatch(name) is None for name in names) or len(set(names)) != len(names):
        raise InspectionFailed("the inspector listed file names that a version cannot have")
    if not verdict.refusals and (verdict.config is None or not names):
        raise InspectionFailed("the inspector accepted a folder without saying what is in it")


def _folder_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    except OSError:  # the inspector says what is wrong with it, in its own words
        return 0


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _last_line(raw: bytes) -> str:
    lines = raw.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"
