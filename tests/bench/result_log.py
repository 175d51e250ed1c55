"""What was measured, row by row: a run that is ended at any moment goes on where it was."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Key:
    """What a row is of: the code that was measured, the workload, the round, and the server."""

    commit: str
    workload: str
    round: int
    server: str


@dataclass(frozen=True)
class Row:
    """Figures by name."""

    key: Key
    figures: dict[str, Any]


class ResultLog:
    """Rows in a file of JSON lines, each on disk before :meth:`append` returns.

    Args:
        path: the file; its last line is dropped where a kill cut it short.
        fresh: begin with nothing.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        whole = b"".join(line for line in _lines(path) if line.endswith(b"\n"))
        if path.exists() and len(whole) < path.stat().st_size:
            path.write_bytes(whole)
        self.rows = [Row(Key(**row["key"]), row["figures"]) for row in map(json.loads, whole.splitlines())]

    def __contains__(self, key: Key) -> bool:
        return any(row.key == key for row in self.rows)

    def append(self, key: Key, figures: dict[str, Any]) -> None:
        """Add a row."""
        self.rows.append(Row(key, figures))
        with self._path.open("a") as file:
            file.write(json.dumps({"key": asdict(key), "figures": figures}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from file
