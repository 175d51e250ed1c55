"""Has a model folder judged in a throw-away child: a stranger's bytes are never parsed in this process.

The child is ``python -m dataplane.inspect DIR`` with an empty environment and a deadline; before it reads a byte it
limits its own memory, processor time, files and output (:mod:`dataplane.sandbox`), which a parent could only do after
the child has started. What comes back is decoded by a closed schema and checked again where this side relies on it.
"""

import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from dataplane.contracts import verdict as contract
from dataplane.contracts.verdict import Verdict

_START_S = 30
_BYTES_PER_S = 50_000_000
"""A slow disk and a slow hash: the deadline grows with the folder, a stuck child still meets one."""
_JUDGED = (0, 1)
"""Exit codes of an inspector that reached a verdict: accepted, refused."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)


class InspectionFailed(Exception):
    """The child reached no verdict: it crashed, ran over a limit, or printed something else."""


def inspect(folder: Path) -> Verdict:
    """Return the verdict on ``folder``.

    Raises:
        InspectionFailed: no verdict was reached; the message says how the child ended.
    """
    deadline_s = _START_S + _folder_bytes(folder) // _BYTES_PER_S
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            _command(folder), stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            env={}, cwd="/", start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            raise InspectionFailed(f"the inspector was stopped after {deadline_s} s without a verdict") from None
        finally:
            child.kill()
            child.wait()
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
