"""Dividing blocks over replicas: the arithmetic that leases stand on."""

from hypothesis import given
from hypothesis import strategies as st

from dataplane.fleet.parts import Row, divide, evenly, fill, move

blocks = st.integers(0, 200)


def several(size: int = 4) -> st.SearchStrategy[list[int]]:
    return st.lists(blocks, min_size=size, max_size=size)


def row(total: int, wants: list[list[int]], held: list[int] | None = None, told: list[int] | None = None) -> Row:
    size = len(wants[0])
    cumulative = [[max(level[place] for level in wants[: n + 1]) for place in range(size)] for n in range(len(wants))]
    held = held or [0] * size
    return Row(total, told or [0] * size, held, held, cumulative, 0, [False] * size)


@given(blocks, several())
def test_what_is_divided_is_all_given_and_nobody_gets_more_than_it_lacks(amount: int, lacks: list[int]) -> None:
    given_ = divide(amount, lacks)
    assert sum(given_) == min(amount, sum(lacks))
    assert all(0 <= mine <= lack for mine, lack in zip(given_, lacks, strict=True))
    if amount < sum(lacks):
        for mine, lack in zip(given_, lacks, strict=True):
            assert abs(mine - amount * lack / sum(lacks)) < 1


@given(blocks, several())
def test_what_is_spread_evenly_differs_by_one_block_where_no_limit_is_reached(amount: int, limits: list[int]) -> None:
    given_ = evenly(amount, limits)
    assert sum(given_) == min(amount, sum(limits))
    assert all(0 <= mine <= limit for mine, limit in zip(given_, limits, strict=True))
    open_ = [mine for mine, limit in zip(given_, limits, strict=True) if mine < limit]
    if open_:
        assert max(given_) - min(open_) <= 1


@given(st.lists(st.tuples(blocks, several(), several()), min_size=1, max_size=3), several())
def test_no_want_is_met_before_a_more_urgent_one_and_the_room_that_rows_share_is_never_passed(
    given_: list[tuple[int, list[int], list[int]]], room: list[int]
) -> None:
    rows = [row(total, [urgent, late]) for total, urgent, late in given_]
    parts = fill(rows, room)
    spread = fill(rows, room, [True] * 4)
    for place, most in enumerate(room):
        assert sum(mine[place] for mine in spread) <= most
    for each, mine, more in zip(rows, parts, spread, strict=True):
        assert sum(mine) <= each.total
        assert all(few <= many for few, many in zip(mine, more, strict=True))
        crowd = [sum(other.wants[0][place] for other in rows) for place in range(4)]
        short = [
            part < want and all_want <= most
            for part, want, all_want, most in zip(mine, each.wants[0], crowd, room, strict=True)
        ]
        if any(short) and sum(mine) == each.total:
            assert all(part <= want for part, want in zip(mine, each.wants[0], strict=True)), "beyond what is urgent"
    if sum(each.total for each in rows) <= sum(room):
        assert all(sum(mine) == each.total for each, mine in zip(rows, spread, strict=True)), "some were not given"


@given(several(), several(), st.integers(0, 400), several())
def test_what_is_told_on_the_way_never_adds_up_to_more_than_may_be_held(
    target: list[int], held: list[int], spare: int, room: list[int]
) -> None:
    total = sum(held) + spare - 100
    told = move(row(max(0, total), [[0] * 4], held), target, list(room))
    at_worst = [max(part, kept, was) for (part, kept), was in zip(told, held, strict=True)]
    assert sum(at_worst) <= max(total, sum(held))
    for (part, kept), want, was, most in zip(told, target, held, room, strict=True):
        assert part <= max(want, was)
        assert part == want or (want > was and part - was <= most)
        assert kept == (was if want < was else 0), "what is in use stays, unless it may be cut"


def test_parts_that_serve_well_stay_and_a_request_that_cannot_begin_moves_them() -> None:
    def serves_well(told: list[int], urgent: list[int], late: list[int]) -> bool:
        made = row(64, [urgent, late], told=told)
        both = [True, True]
        return made.serves_well(fill([made], [64, 64])[0], fill([made], [64, 64], both)[0], both)

    assert serves_well([32, 32], [20, 0], [32, 0])
    assert serves_well([32, 32], [20, 0], [36, 0]), "short of a sixteenth"
    assert not serves_well([32, 32], [20, 0], [37, 0])
    assert not serves_well([32, 32], [33, 0], [33, 0]), "one block lacks for the request that goes next"
    assert not serves_well([32, 31], [0, 0], [0, 0]), "a block is with nobody"
