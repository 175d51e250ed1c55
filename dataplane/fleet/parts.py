"""Dividing a number of blocks over replicas: who gets how many, and how parts move without ever adding up to more."""

from collections.abc import Sequence
from dataclasses import dataclass

_GRAIN_PART = 16
"""A shortage of less than this part of the whole moves nothing by itself."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one tenant is promised, over the replicas that divide it. Blocks; sequences are by replica.

    Attributes:
        total: what these replicas may hold together.
        told: the part that each was told last.
        held: the most that may be in force at each.
        sure: the least that may be.
        wants: what each should hold: lists by urgency, each no less than the one before. The first is what is in use.
        urgent: which of ``wants`` must not be short by a single block.
        may_cut: for each, whether it may be told to give up what is in use.
        turns: where the urgent wants are of use only whole, the places in the order in which they are met one by one.
    """

    total: int
    told: Sequence[int]
    held: Sequence[int]
    sure: Sequence[int]
    wants: Sequence[Sequence[int]]
    urgent: int
    may_cut: Sequence[bool]
    turns: Sequence[int] = ()

    def serves_well(self, needed: Sequence[int], target: Sequence[int], spread_to: Sequence[bool]) -> bool:
        """Say whether the parts as told can stay, where ``needed`` is wanted and ``target`` would be best.

        Not where a replica that takes no requests (``spread_to``) has more than its own need.
        """
        hoards = any(told > best and not here for told, best, here in zip(self.told, target, spread_to, strict=True))
        if hoards or sum(self.told) != sum(target):
            return False
        grain = self.total // _GRAIN_PART
        urgent = self.wants[self.urgent]
        return all(
            told >= min(need, pressing) and told + grain >= need
            for told, need, pressing in zip(self.told, needed, urgent, strict=True)
        )


def divide(amount: int, lacks: Sequence[int]) -> list[int]:
    """Give each what it lacks; where ``amount`` is less than that, in proportion (largest remainders)."""
    lacking = sum(lacks)
    if lacking <= amount:
        return list(lacks)
    given = [amount * lack // lacking for lack in lacks]
    by_remainder = sorted(range(len(lacks)), key=lambda place: -(amount * lacks[place] % lacking))
    for place in by_remainder[: amount - sum(given)]:
        given[place] += 1
    return given


def one_by_one(amount: int, lacks: Sequence[int], turns: Sequence[int]) -> list[int]:
    """Give each what it lacks in the order of ``turns``: the last to get anything may get a part."""
    given = [0] * len(lacks)
    for place in turns:
        given[place] = min(lacks[place], amount)
        amount -= given[place]
    return given


def evenly(amount: int, limits: Sequence[int]) -> list[int]:
    """Give all the same, as far as each may take it, until ``amount`` is gone."""
    given = [0] * len(limits)
    while amount > 0 and (places := [place for place, limit in enumerate(limits) if given[place] < limit]):
        each = max(1, amount // len(places))
        for place in places:
            more = min(each, limits[place] - given[place], amount)
            given[place] += more
            amount -= more
    return given


def fill(rows: Sequence[Row], room: Sequence[int], spread_to: Sequence[bool] | None = None) -> list[list[int]]:
    """Return the parts of each row that would be best. Their sums stay within ``room``, which the rows share.

    Every row's more urgent wants are met before anybody's less urgent ones. What is left over goes evenly to the
    replicas of ``spread_to``; without it, to none.
    """
    left = list(room)
    parts = [[0] * len(left) for _ in rows]

    def give(mine: list[int], more: Sequence[int]) -> None:
        for place, blocks in enumerate(more):
            mine[place] += blocks
            left[place] -= blocks

    for level in range(max((len(row.wants) for row in rows), default=0)):
        for row, mine in zip(rows, parts, strict=True):
            wants = row.wants[level] if level < len(row.wants) else mine
            lacks = [max(0, min(want - part, free)) for want, part, free in zip(wants, mine, left, strict=True)]
            left_over = row.total - sum(mine)
            in_turn = row.turns and level == row.urgent
            give(mine, one_by_one(left_over, lacks, row.turns) if in_turn else divide(left_over, lacks))
    if spread_to is not None:
        for row, mine in zip(rows, parts, strict=True):
            limits = [max(0, free) if here else 0 for free, here in zip(left, spread_to, strict=True)]
            give(mine, evenly(row.total - sum(mine), limits))
    return parts


def move(row: Row, target: Sequence[int], room: list[int]) -> list[tuple[int, int]]:
    """Return what each replica is to be told on the way to ``target``: its part, and what it keeps while in use.

    Parts are lowered at once, and raised only by what nobody may hold, within ``room``, from which that is taken. While
    more may be held than is promised, nobody is told more than it surely has: what it was told besides may be lost.
    """
    over = sum(row.held) > row.total
    free = max(0, row.total - sum(row.held))
    lacks = [max(0, min(want - held, left)) for want, held, left in zip(target, row.held, room, strict=True)]
    told: list[tuple[int, int]] = []
    for place, more in enumerate(divide(free, lacks)):
        held = row.held[place]
        room[place] -= more
        part = min(target[place], row.sure[place] if over else held + more)
        told.append((part, 0 if part >= held or row.may_cut[place] else held))
    return told
