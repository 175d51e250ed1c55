"""Collects what is wrong with a folder, so that one look gives the whole list."""

from collections.abc import Iterator
from contextlib import contextmanager

from dataplane.contracts.verdict import Refusal

MAX_REFUSALS = 50


class Refused(Exception):
    """One check ends here: what is wrong, and what to do."""

    def __init__(self, reason: str, mend: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.mend = mend


class Refusals:
    """The list so far, at most :data:`MAX_REFUSALS`."""

    def __init__(self) -> None:
        self._found: list[Refusal] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, file: str, reason: str, mend: str) -> None:
        """Note one thing that is wrong with ``file``, "" for the folder as a whole."""
        if len(self._found) < MAX_REFUSALS:
            self._found.append(Refusal(file=file, reason=reason, mend=mend))

    def about(self, file: str) -> bool:
        """Say whether something is wrong with ``file`` already."""
        return any(refusal.file == file for refusal in self._found)

    @contextmanager
    def of(self, file: str) -> Iterator[None]:
        """Note a :class:`Refused` that the body raises, and go on."""
        try:
            yield
        except Refused as error:
            self.add(file, error.reason, error.mend)

    def all(self) -> tuple[Refusal, ...]:
        """Return the list."""
        return tuple(self._found)


def shown(text: str) -> str:
    """Return a stranger's text for a sentence: one short line of ASCII, quoted."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")
