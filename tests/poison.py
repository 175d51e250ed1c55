"""Poison for the KV blocks that are free: whoever reads one that is not its own, or not computed yet, is caught."""

from collections.abc import Callable

from dataplane.engine.block_list import Block
from dataplane.engine.engine import Engine


def poison_what_is_free(engine: Engine, poison: Callable[[int], None]) -> None:
    """Call ``poison`` with the id of each block of ``engine``: now, and whenever it is freed."""
    pool = engine._pool
    free_block = pool._free_block

    def free_and_poison(block: Block) -> None:
        free_block(block)
        poison(block.id)

    for block in pool.blocks:
        poison(block.id)
    pool._free_block = free_and_poison  # type: ignore[method-assign]
