"""The heap that is not told of what moves back or leaves: it gives what a sorted list would."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dataplane.engine.lazy_heap import LazyHeap


@dataclass(eq=False)
class Thing:
    id: str
    key: int
    belongs: bool = True


def heap_of(things: list[Thing]) -> LazyHeap[Thing]:
    heap = LazyHeap[Thing](lambda thing: thing.key, lambda thing: thing.belongs)
    for thing in things:
        heap.add(thing)
    return heap


def first(things: list[Thing]) -> Thing | None:
    return min((thing for thing in things if thing.belongs), key=lambda thing: (thing.key, thing.id), default=None)


events = st.lists(
    st.tuples(st.sampled_from(["grow", "sink", "leave", "join", "pop", "look"]), st.integers(0, 7), st.integers(1, 9)),
    max_size=120,
)


@given(events)
def test_it_gives_the_least_whatever_grew_sank_left_and_joined_before(events: list[tuple[str, int, int]]) -> None:
    things = [Thing(str(number), number) for number in range(8)]
    heap = heap_of(things)
    for event, number, amount in events:
        thing = things[number]
        if event == "grow":
            thing.key += amount
        elif event == "sink":
            thing.key -= amount
            heap.add(thing)
        elif event == "leave":
            thing.belongs = False
        elif event == "join":
            thing.belongs = True
            heap.add(thing)
        elif event == "pop":
            popped = heap.pop()
            assert popped is first(things)
            if popped is not None:
                popped.belongs = False
        else:
            assert heap.least() is first(things)
        assert sorted(thing.id for thing in heap) == [thing.id for thing in things if thing.belongs]


def test_another_of_the_same_name_takes_the_place_of_the_first() -> None:
    old, new = Thing("a", 1), Thing("a", 1)
    heap = heap_of([old, new])
    assert heap.pop() is new
    assert heap.pop() is None


def test_what_left_or_sank_again_and_again_is_not_kept() -> None:
    pin = Thing("pin", -10_000)
    heap = heap_of([pin])
    for number in range(5_000):
        heap.add(passer := Thing(f"passer {number}", number))
        passer.belongs = False
        pin.key -= 1
        heap.add(pin)
    assert len(heap._entries) < 50
    assert len(heap._items) < 50
