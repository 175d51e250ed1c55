import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.gateway.cold_queue import Bounds, ColdQueue, Full, Held, Waiter

WEIGHTS = {"acme": 1, "evil": 1, "rich": 4}
ROOMY = Bounds(10_000, 10**9)
NOW_S = 100.0


def waiter(tenant: str, size_bytes: int = 1, expires_s: float = 200.0) -> Waiter:
    return Waiter(tenant_id=tenant, weight=WEIGHTS[tenant], size_bytes=size_bytes, expires_s=expires_s)


def push(queue: ColdQueue[Waiter], guest: Waiter, limits: Bounds) -> list[Waiter] | Full:
    try:
        return queue.push(guest, limits)
    except Full as full:
        return full


def leave(queue: ColdQueue[Waiter], count: int | None = None) -> list[Waiter]:
    """Let all go, or the first ``count``."""
    gone = []
    while (count is None or len(gone) < count) and (taken := queue.take(lambda w: "seat", NOW_S)) is not None:
        gone.append(taken[0])
    return gone


tenants = st.sampled_from(list(WEIGHTS))
comings = st.lists(st.tuples(tenants, st.integers(1, 50)), max_size=60)
bounds = st.builds(Bounds, st.integers(1, 20), st.integers(20, 400))


@given(comings, bounds)
def test_whatever_comes_the_bounds_hold_and_everybody_is_waiting_evicted_or_refused(arrivals, limits: Bounds) -> None:
    queue: ColdQueue[Waiter] = ColdQueue()
    waiting: set[Waiter] = set()
    for tenant, size_bytes in arrivals:
        guest = waiter(tenant, size_bytes)
        evicted = push(queue, guest, limits)
        if isinstance(evicted, Full):
            assert evicted.waiting == sum(other.tenant_id == tenant for other in waiting)
            assert evicted.over_share == any(other.tenant_id != tenant for other in waiting)
        else:
            assert waiting.issuperset(evicted)
            waiting = (waiting | {guest}) - set(evicted)
        assert len(queue) == len(waiting) <= limits.max_requests
        assert queue.size_bytes == sum(other.size_bytes for other in waiting) <= limits.max_bytes
    assert set(leave(queue)) == waiting
    assert (len(queue), queue.size_bytes) == (0, 0)


@given(comings, st.integers(1, 20))
def test_nobody_goes_for_a_tenant_that_holds_as_much_for_its_weight(arrivals, most: int) -> None:
    queue: ColdQueue[Waiter] = ColdQueue()
    held: Counter[str] = Counter()
    for tenant, _ in arrivals:
        evicted = push(queue, waiter(tenant), Bounds(most, 10**9))
        if isinstance(evicted, Full):
            mine = (held[tenant] + 1) / WEIGHTS[tenant]
            assert all(held[other] / WEIGHTS[other] <= mine for other in WEIGHTS if other != tenant)
            continue
        held[tenant] += 1
        for other in evicted:
            assert held[other.tenant_id] / WEIGHTS[other.tenant_id] > held[tenant] / WEIGHTS[tenant]
            held[other.tenant_id] -= 1


def test_a_flood_gives_way_to_who_comes_later_and_its_newest_go_first() -> None:
    queue: ColdQueue[Waiter] = ColdQueue()
    flood = [waiter("evil") for _ in range(10)]
    for guest in flood:
        queue.push(guest, Bounds(10, 10**9))
    evicted = [queue.push(waiter("acme"), Bounds(10, 10**9)) for _ in range(5)]
    assert evicted == [[guest] for guest in reversed(flood[5:])]
    for tenant in ("acme", "evil"):
        with pytest.raises(Full) as full:
            queue.push(waiter(tenant), Bounds(10, 10**9))
        assert (full.value.waiting, full.value.over_share) == (5, True)


def test_a_large_body_takes_the_place_of_many_small_ones_only_up_to_its_tenants_share() -> None:
    queue: ColdQueue[Waiter] = ColdQueue()
    limits = Bounds(1000, 1000)
    for _ in range(10):
        queue.push(waiter("evil", 100), limits)
    assert len(queue.push(waiter("acme", 400), limits)) == 4
    with pytest.raises(Full):
        queue.push(waiter("acme", 400), limits)
    assert (queue.waiting("evil"), queue.waiting("acme"), queue.size_bytes) == (6, 1, 1000)


@given(st.lists(tenants, max_size=80))
def test_a_tenants_requests_leave_in_the_order_in_which_they_came(arrivals) -> None:
    queue: ColdQueue[Waiter] = ColdQueue()
    guests = [waiter(tenant) for tenant in arrivals]
    for guest in guests:
        queue.push(guest, ROOMY)
    gone = leave(queue)
    for tenant in WEIGHTS:
        assert [g for g in gone if g.tenant_id == tenant] == [g for g in guests if g.tenant_id == tenant]


@given(st.data())
def test_tenants_that_wait_all_the_while_leave_as_often_for_their_weight_whoever_else_comes_and_goes(data) -> None:
    queue: ColdQueue[Waiter] = ColdQueue()
    for tenant in ["acme"] * 60 + ["rich"] * 60:
        queue.push(waiter(tenant), ROOMY)
    gone: Counter[str] = Counter()
    for _ in range(data.draw(st.integers(0, 70))):
        if data.draw(st.booleans()):
            queue.push(waiter("evil"), ROOMY)
        [guest] = leave(queue, 1)
        gone[guest.tenant_id] += 1
        assert abs(gone["acme"] / 1 - gone["rich"] / 4) <= 1 + 1 / 4
        assert gone["evil"] <= gone["acme"] + 1 + 1e-9


def test_coming_again_at_once_is_no_way_to_the_front() -> None:
    queue: ColdQueue[Waiter] = ColdQueue()
    for _ in range(20):
        queue.push(waiter("acme"), ROOMY)
    gone = []
    for _ in range(20):
        if not queue.waiting("evil"):
            queue.push(waiter("evil"), ROOMY)
        gone += leave(queue, 1)
    assert sum(guest.tenant_id == "evil" for guest in gone) == 10


def test_who_waits_for_room_is_not_passed_and_who_nothing_can_serve_is() -> None:
    queue: ColdQueue[Waiter] = ColdQueue()
    first, second = waiter("acme"), waiter("evil")
    queue.push(first, ROOMY)
    queue.push(second, ROOMY)
    assert queue.take(lambda guest: Held.NO_ROOM if guest is first else "seat", NOW_S) is None
    assert queue.take(lambda guest: Held.NO_REPLICA if guest is first else "seat", NOW_S) == (second, "seat")
    assert queue.take(lambda guest: Held.NO_REPLICA, NOW_S) is None
    assert queue.take(lambda guest: "seat", NOW_S) == (first, "seat")


def test_no_seat_is_given_to_one_whose_wait_is_over() -> None:
    queue: ColdQueue[Waiter] = ColdQueue()
    late, early = waiter("acme", expires_s=NOW_S), waiter("acme")
    queue.push(late, ROOMY)
    queue.push(early, ROOMY)
    assert leave(queue) == [early]
    assert queue.discard(late)
    assert not queue.discard(late)


@given(st.integers(1, 500), st.integers(1, 500))
def test_the_parts_of_a_bound_are_together_no_less_than_it_and_hardly_more(most: int, sharers: int) -> None:
    part = Bounds(most, most).shared_by(sharers)
    for each in (part.max_requests, part.max_bytes):
        assert each >= 1
        assert most <= each * sharers < most + sharers


def test_rank_is_by_arrival_where_turns_are_equal() -> None:
    for order in itertools.permutations(["acme", "evil", "rich"]):
        queue: ColdQueue[Waiter] = ColdQueue()
        for tenant in order:
            queue.push(waiter(tenant), ROOMY)
        assert [guest.tenant_id for guest in leave(queue)] == list(order)
