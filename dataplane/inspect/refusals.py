"""Collects what is wrong with a folder, so that one look gives the whole list."""

from collections.abc import Iterator
from contextlib import contextmanager

from dataplane.contracts.verdict import Refusal

MAX_REFUSALS = 50
_MAX_REASON_CHARS = 500


class Refused(Exception):
    """One check ends here: what is wrong, and what to do."""

    def __init__(self, reason: str, mend: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.mend = mend


class Refusals:
    """The list so far. All are counted, the first :data:`MAX_REFUSALS` are kept."""

    def __init__(self) -> None:
        self._found: list[Refusal] = []
        self._count = 0
        self._last: Refusal | None = None

    def __len__(self) -> int:
        return self._count

    def add(self, file: str, reason: str, mend: str) -> None:
        """Note one thing that is wrong with ``file``, "" for the folder as a whole."""
        self._last = Refusal(file=file, reason=printable(reason), mend=mend)
        self._count += 1
        if len(self._found) < MAX_REFUSALS:
            self._found.append(self._last)

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

    def since(self, count: int) -> tuple[str, str]:
        """Return reason and mend of what was found after the first ``count``, for one line of a checklist."""
        added = self._count - count
        if not added or self._last is None:
            return "", ""
        first = self._found[count] if count < len(self._found) else self._last
        where = f"{first.file}: " if first.file else ""
        more = f", and {added - 1} more" if added > 1 else ""
        return f"{where}{first.reason}{more}", first.mend

    def all(self) -> tuple[Refusal, ...]:
        """Return the list."""
        return tuple(self._found)


def printable(sentence: str) -> str:
    """Return a sentence that may quote a stranger for a log, a database and a page: one bounded line of text."""
    cut = sentence if len(sentence) <= _MAX_REASON_CHARS else sentence[: _MAX_REASON_CHARS - 3] + "..."
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in cut)


def shown(text: str) -> str:
    """Return a stranger's text for a sentence: one short line of ASCII, quoted."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")
