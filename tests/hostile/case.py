"""A hostile folder: a good tiny model, and what a stranger did to it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Change = Callable[[Path], object]

ACCEPTED = ""
"""The folder is harmless: it must be accepted."""
EITHER = None
"""Accepted or refused, whichever: the change may have no effect."""


class Case(NamedTuple):
    """``refused`` is a part of what the verdict must say, or :data:`ACCEPTED` or :data:`EITHER`.

    ``break_it`` gets a folder of a good model. What must never run would make the file ``ran`` beside that folder.
    """

    family: str
    name: str
    break_it: Change
    refused: str | None


def write(name: str, content: str | bytes) -> Change:
    """Put a file in place."""
    raw = content.encode() if isinstance(content, str) else content
    return lambda model: (model / name).write_bytes(raw)


def change(name: str, **changes: object) -> Change:
    """Change fields of a JSON file."""
    return lambda model: edit(model / name, **changes)


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def remove(name: str) -> Change:
    return lambda model: (model / name).unlink()


def both(first: Change, second: Change) -> Change:
    """Do one after the other."""

    def apply(model: Path) -> None:
        first(model)
        second(model)

    return apply


def cases(family: str, table: dict[str, tuple[Change, str | None]]) -> list[Case]:
    """Return the cases of one family."""
    return [Case(family, name, break_it, refused) for name, (break_it, refused) in table.items()]
