"""How files are cut into parts, and what an upload may be. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from controlplane.registry.models import FILE_NAME_MAX_CHARS, FILE_NAME_PATTERN
from tenants.errors import Invalid

MAX_PART_BYTES = 16 * 1024 * 1024
MAX_PARTS = 10_000
"""Of a file; object stores take no more."""
MAX_FILES = 200
MAX_FILE_BYTES = MAX_PART_BYTES * MAX_PARTS


class FilePlan(NamedTuple):
    """A file that somebody wants to upload."""

    name: str
    size_bytes: int


def check_files(files: Sequence[FilePlan]) -> None:
    """Refuse what cannot be uploaded, whatever is in it.

    Raises:
        Invalid: no files or too many, a name that is none or comes twice, a size out of bounds; each is named.
    """
    if not 1 <= len(files) <= MAX_FILES:
        raise Invalid(f"An upload has 1 to {MAX_FILES} files, this one {len(files)}.", fields={"files": "too many"})
    faults: dict[str, str] = {}
    seen: set[str] = set()
    for file in files:
        reason = _fault(file, seen)
        seen.add(file.name)
        if reason:
            faults[file.name[:FILE_NAME_MAX_CHARS]] = reason
    if faults:
        name, reason = next(iter(faults.items()))
        raise Invalid(f"{name!r}: {reason}", fields=faults)


def _fault(file: FilePlan, seen: set[str]) -> str:
    if len(file.name) > FILE_NAME_MAX_CHARS or not re.fullmatch(FILE_NAME_PATTERN, file.name, re.ASCII):
        return (
            f"A file's name has 1 to {FILE_NAME_MAX_CHARS} letters, digits, dots, dashes and underscores, and begins "
            "with none of dot and dash. Folders are not taken: bring the files of one folder."
        )
    if file.name in seen:
        return "This name comes twice. Leave one of the two out."
    if file.size_bytes < 1:
        return "This file is empty. Leave it out."
    if file.size_bytes > MAX_FILE_BYTES:
        return f"A file has at most {MAX_FILE_BYTES} bytes. Save the model in shards."
    return ""


def part_bytes_for(files: Iterable[FilePlan], usual_bytes: int) -> int:
    """Return the size of parts for an upload: the usual one while it makes no more than :data:`MAX_PARTS`."""
    largest_bytes = max(file.size_bytes for file in files)
    return usual_bytes if num_parts(largest_bytes, usual_bytes) <= MAX_PARTS else MAX_PART_BYTES


def num_parts(size_bytes: int, part_bytes: int) -> int:
    """Return how many parts a file has; all but the last have ``part_bytes``."""
    return -(-size_bytes // part_bytes)


def size_of_part(size_bytes: int, part_bytes: int, number: int) -> int:
    """Return the bytes of the part ``number``, which counts from 1."""
    return min(part_bytes, size_bytes - (number - 1) * part_bytes)


def in_words(numbers: Iterable[int]) -> str:
    """Write numbers as ranges: ``2, 5-7``."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
