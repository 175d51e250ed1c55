"""Readings over time, from the buckets as they are stored. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import reduce

from controlplane.isolation.reading import Reading, beside, then


class Span(StrEnum):
    """How far back one looks."""

    HOUR = "1h"
    DAY = "24h"
    WEEK = "7d"


_SPANS = {
    Span.HOUR: (timedelta(hours=1), timedelta(minutes=5)),
    Span.DAY: (timedelta(hours=24), timedelta(hours=1)),
    Span.WEEK: (timedelta(days=7), timedelta(hours=6)),
}
"""The whole of it, and one slot of its series."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A stored reading: from ``at`` on, told last at ``seen_at``, by the replicas of one version on one node."""

    at: datetime
    seen_at: datetime
    place: tuple[str, str]
    reading: Reading


@dataclass(frozen=True, slots=True)
class Slot:
    """A reading of the time from ``at`` to the next slot. It is empty where nothing was told."""

    at: datetime
    reading: Reading


@dataclass(frozen=True, slots=True)
class Window:
    """A span of whole slots that ends with the slot of a moment."""

    since: datetime
    until: datetime
    slot: timedelta


def window(span: Span, now: datetime) -> Window:
    """Return the slots that ``span`` has at ``now``, the unfinished one included."""
    whole, slot = _SPANS[span]
    until = _floored(now, slot) + slot
    return Window(until - whole, until, slot)


def slots(buckets: Iterable[Bucket], over: Window) -> tuple[Slot, ...]:
    """Return the readings of all places together, slot by slot."""
    moments: dict[datetime, list[Reading]] = defaultdict(list)
    for bucket in buckets:
        moments[bucket.at].append(bucket.reading)
    in_slots: dict[datetime, list[Reading]] = defaultdict(list)
    for at in sorted(moments):
        in_slots[_floored(at, over.slot)].append(beside(moments[at]))
    found: list[Slot] = []
    at = over.since
    while at < over.until:
        readings = in_slots.get(at)
        found.append(Slot(at, reduce(then, readings) if readings else Reading()))
        at += over.slot
    return tuple(found)


def whole(found: Sequence[Slot]) -> Reading:
    """Return the reading of all slots together."""
    return reduce(then, (slot.reading for slot in found), Reading())


def latest(buckets: Iterable[Bucket], heard_since: datetime) -> Reading | None:
    """Return what is held now: the last word of every place that was heard; None where none was."""
    last: dict[tuple[str, str], Bucket] = {}
    for bucket in buckets:
        if bucket.seen_at >= heard_since and (bucket.place not in last or last[bucket.place].at < bucket.at):
            last[bucket.place] = bucket
    return beside(bucket.reading for bucket in last.values()) if last else None


def _floored(moment: datetime, slot: timedelta) -> datetime:
    seconds = int(slot.total_seconds())
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, UTC)
