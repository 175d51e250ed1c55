"""Blocks of the KV pool and the intrusive lists they hang in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataplane.engine.tenant_budget import TenantBudget


class Block:
    """A fixed number of token positions in the KV pool.

    Attributes:
        id: index into the pool.
        owner: the tenant whose tokens it holds; None while free. Salts give every block exactly one owner.
        ref_count: sequences that hold it.
        digest: its key in the prefix cache; None when it is not indexed there.
        token_ids: what it holds when indexed, compared on every hit.
    """

    __slots__ = ("digest", "id", "next", "owner", "previous", "ref_count", "token_ids")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.owner: TenantBudget | None = None
        self.ref_count = 0
        self.digest: bytes | None = None
        self.token_ids: list[int] = []
        self.previous: Block = self
        self.next: Block = self


class BlockList:
    """A doubly linked list through the blocks themselves: every operation is O(1) and allocates nothing."""

    __slots__ = ("_length", "_sentinel")

    def __init__(self) -> None:
        self._sentinel = Block(-1)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._sentinel.next
        while block is not self._sentinel:
            yield block
            block = block.next

    def append(self, block: Block) -> None:
        """Hang ``block`` at the end."""
        last = self._sentinel.previous
        block.previous, block.next = last, self._sentinel
        last.next = self._sentinel.previous = block
        self._length += 1

    def remove(self, block: Block) -> None:
        """Take ``block`` out. It must be in this list."""
        block.previous.next, block.next.previous = block.next, block.previous
        block.previous = block.next = block
        self._length -= 1

    def popleft(self) -> Block:
        """Take the first block.

        Raises:
            IndexError: the list is empty.
        """
        if self._length == 0:
            raise IndexError("pop from an empty block list")
        block = self._sentinel.next
        self.remove(block)
        return block
