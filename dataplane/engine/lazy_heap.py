"""A heap whose items need not say when they move back or leave: what looks at it pays, and only for what it sees."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic, Protocol, TypeVar

_MOST_STALE = 16
"""Entries that may be out of date before they are swept, beside as many as are not."""


class _Named(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=_Named)


class LazyHeap(Generic[Item]):
    """Items by key, least first.

    An entry holds a key that its item had once. Keys may grow and items may cease to belong without a word: an entry is
    held against its item when it comes to the top, and put back or dropped. So a change costs nothing, and a look costs
    the logarithm of the items for each change that came to the top. Only what joins, or sinks, must be told of.

    Args:
        key: of an item now.
        belongs: says whether an item is in the heap now.
    """

    __slots__ = ("_belongs", "_entries", "_items", "_key", "_sweep_at")

    def __init__(self, key: Callable[[Item], Any], belongs: Callable[[Item], bool]) -> None:
        self._key = key
        self._belongs = belongs
        self._entries: list[tuple[Any, str]] = []
        self._items: dict[str, tuple[Any, Item]] = {}  # by id, with the key of the entry that counts
        self._sweep_at = _MOST_STALE

    def __iter__(self) -> Iterator[Item]:
        """Yield what belongs, in no order."""
        return (item for _, item in self._items.values() if self._belongs(item))

    def add(self, item: Item) -> None:
        """Note that ``item`` belongs from now on, or that its key has sunk. To say it too often does no harm."""
        key = self._key(item)
        known = self._items.get(item.id)
        if known is not None and known[1] is item and known[0] <= key:
            return
        self._items[item.id] = key, item
        heappush(self._entries, (key, item.id))
        if len(self._entries) > self._sweep_at:
            self._sweep()

    def least(self) -> Item | None:
        """Return the item with the least key; of equals, that with the least id. None if nothing belongs."""
        entries = self._entries
        while entries:
            key, item_id = entries[0]
            known = self._items.get(item_id)
            if known is None or known[0] != key:
                heappop(entries)  # a later entry of the item counts
                continue
            item = known[1]
            if not self._belongs(item):
                heappop(entries)
                del self._items[item_id]
                continue
            now = self._key(item)
            if now == key:
                return item
            self._items[item_id] = now, item
            heapreplace(entries, (now, item_id))
        return None

    def pop(self) -> Item | None:
        """Take out the item with the least key, until it is added again."""
        item = self.least()
        if item is not None:
            heappop(self._entries)
            del self._items[item.id]
        return item

    def clear(self) -> None:
        """Forget everything, where nothing belongs any more: else an item is held until its entry comes to the top."""
        self._items, self._entries, self._sweep_at = {}, [], _MOST_STALE

    def _sweep(self) -> None:
        items = list(self)
        self._items = {item.id: (self._key(item), item) for item in items}
        self._entries = [(key, item_id) for item_id, (key, _) in self._items.items()]
        heapify(self._entries)
        self._sweep_at = _MOST_STALE + 2 * len(items)
