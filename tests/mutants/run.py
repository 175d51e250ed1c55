"""Puts each known fault back into a copy of the engine, and shows that its test fails: ``make mutants``.

First all of the tests must pass on the copy as it is; then each must fail by an assertion with its fault in, and not
by an error, which would only say that the fault is badly made. Ends with 1 otherwise.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mutants import MUTANTS, REPOSITORY, Mutant

_FOLDERS = ("dataplane/contracts", "dataplane/engine", "dataplane/sim", "tests/engine")
_FILES = ("dataplane/__init__.py", "tests/poison.py")
_LIMIT_S = 300
_PASSED, _SEEN = "passed", "failed by an assertion"


class Copy:
    """A copy of the engine and its tests in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for part in _FOLDERS:
            shutil.copytree(REPOSITORY / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        for part in _FILES:
            shutil.copy(REPOSITORY / part, folder / part)
        (folder / "pytest.ini").write_text("[pytest]\npythonpath = tests\nmarkers = slow\n")

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Have the fault in for a while."""
        before = {edit.path: (self._folder / edit.path).read_text() for edit in mutant.edits}
        try:
            for edit in mutant.edits:
                path = self._folder / edit.path
                path.write_text(edit.applied(path.read_text()))
            yield
        finally:
            for path, text in before.items():
                (self._folder / path).write_text(text)

    def run(self, nodes: Sequence[str]) -> str:
        """Run tests and return how they ended, in words."""
        report = self._folder / "report.xml"
        report.unlink(missing_ok=True)
        # Bytecode is found by the second and size of its source: it could outlive a fault.
        environment = os.environ | {"PYTHONPATH": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1"}
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:django"]
        try:
            done = subprocess.run(
                [*pytest, f"--junitxml={report}", *nodes],
                cwd=self._folder, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"not done after {_LIMIT_S} s"
        if not report.exists():
            return f"no report: {done.stdout[-500:]}{done.stderr[-500:]}"
        return _judged(ElementTree.parse(report).getroot(), len(nodes))


def _judged(report: ElementTree.Element, expected: int) -> str:
    cases = list(report.iter("testcase"))
    errors = [each.get("message", "") for each in report.iter("error")]
    failures = [each.get("message", "") for each in report.iter("failure")]
    if errors:
        return f"error: {errors[0][:200]}"
    if len(cases) < expected:
        return f"only {len(cases)} of {expected} tests ran"
    if not failures:
        return _PASSED
    by_assertion = all(message.startswith(("assert ", "AssertionError")) for message in failures)
    return _SEEN if by_assertion else f"failed otherwise: {failures[0][:200]}"


def main() -> int:
    """Try every mutant and print a table."""
    with tempfile.TemporaryDirectory(prefix="pagoda-mutants-") as folder:
        copy = Copy(Path(folder))
        sound = copy.run(sorted({mutant.node for mutant in MUTANTS}))
        print(f"without a fault: {sound}", flush=True)
        if sound != _PASSED:
            return 1
        missed = 0
        for mutant in MUTANTS:
            with copy.mutated(mutant):
                outcome = copy.run([mutant.node])
            missed += outcome != _SEEN
            print(f"{mutant.name:85}{'seen' if outcome == _SEEN else 'MISSED'}  {mutant.test}", flush=True)
            if outcome != _SEEN:
                print(f"    {outcome}", flush=True)
    print(f"mutants: {len(MUTANTS) - missed} seen, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
