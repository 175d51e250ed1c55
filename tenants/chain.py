"""The audit chain, pure: each row's hash covers the row and the hash before it, so no row can change or go unseen.

Source of the method: S. Haber and W. S. Stornetta, "How to time-stamp a digital document", 1991 (linking).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

Json = None | bool | int | str | list["Json"] | dict[str, "Json"]

GENESIS = "0" * 64
"""What the first row of a chain names as the hash before it."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a row's hash covers."""

    id: str
    tenant_id: str | None
    sequence: int
    at: datetime
    actor_kind: str
    actor_id: str
    actor_label: str
    verb: str
    target_kind: str
    target_id: str
    target_label: str
    before: Json
    after: Json
    request_id: str
    origin: str
    previous_hash: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a chain is broken, and how."""

    sequence: int
    reason: str


def link_hash(link: Link) -> str:
    """Return the SHA-256 of ``link``'s canonical JSON, in hex."""
    parts = [
        link.id, link.tenant_id, link.sequence, link.at.astimezone(UTC).isoformat(timespec="microseconds"),
        link.actor_kind, link.actor_id, link.actor_label, link.verb, link.target_kind, link.target_id,
        link.target_label, link.before, link.after, link.request_id, link.origin, link.previous_hash,
    ]  # fmt: skip
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def verify(
    rows: Iterable[tuple[Link, str]], head_sequence: int, head_hash: str, *, after: tuple[int, str] = (0, GENESIS)
) -> Iterator[Fault]:
    """Walk a chain in order and yield each fault.

    Args:
        rows: each row with its stored hash, by ascending sequence.
        head_sequence: the sequence that the chain's head names as its last.
        head_hash: the hash that the head names.
        after: sequence and hash of the row before the first, for a chain that is walked in parts.
    """
    sequence, previous = after
    for link, stored in rows:
        if link.sequence != sequence + 1:
            yield Fault(link.sequence, f"rows {sequence + 1} to {link.sequence - 1} are missing")
        elif link.previous_hash != previous:
            yield Fault(link.sequence, "it does not follow the row before it")
        if link_hash(link) != stored:
            yield Fault(link.sequence, "its content is not what was written")
        sequence, previous = link.sequence, stored
    if (sequence, previous) != (head_sequence, head_hash):
        yield Fault(head_sequence, f"the chain ends at row {sequence}, its head names row {head_sequence}")
