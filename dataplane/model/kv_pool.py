"""The KV pool: keys and values of every layer, in blocks that the engine hands out by number.

::

    data[layer]  block 0: [slot 0: K heads | V heads] [slot 1: K heads | V heads] ...   block 1: ...
    slot of a token = block id * block_size + offset in the block
"""

import contextlib
import ctypes

import torch
from torch import Tensor

from dataplane.contracts.model_config import ModelConfig


class KvPool:
    """Storage for ``num_blocks`` blocks of ``block_size`` tokens.

    Memory is not touched before it is written, so a block holds garbage (perhaps NaN) until a row enters it; what the
    row does not fill is cleared then.

    Raises:
        MemoryError: the machine refuses the allocation.
    """

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV pool of {num_blocks} blocks of {block_size} tokens is empty")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._shape = (config.num_layers, num_blocks, block_size, 2, config.num_kv_heads, config.head_dim)
        self._dtype = dtype
        self.restore()

    def restore(self) -> None:
        """Take memory for the blocks, all of which hold garbage.

        Raises:
            MemoryError: the machine refuses the allocation.
        """
        try:
            self.data = torch.empty(self._shape, dtype=self._dtype)
        except RuntimeError as error:
            raise MemoryError(
                f"no memory for a KV pool of {self.num_blocks} blocks of {self.block_size} tokens"
            ) from error
        self._slots = self.data.view(self._shape[0], self.num_blocks * self.block_size, -1)

    def release(self) -> None:
        """Give the memory back to the machine. Nothing may be read or written before :meth:`restore`."""
        self.data = self._slots = torch.empty(0, dtype=self._dtype)
        _give_back_freed_memory()

    def clear(self, block_ids: Tensor) -> None:
        """Zero whole blocks in all layers."""
        self.data.index_fill_(1, block_ids, 0.0)

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Store ``keys_values`` [n, 2 * kv_heads * head_dim] of ``layer`` at ``slots`` [n]."""
        self._slots[layer].index_copy_(0, slots, keys_values.to(self.data.dtype))

    def layer(self, layer: int) -> Tensor:
        """Return the blocks of ``layer``: [num_blocks, block_size, 2, kv_heads, head_dim]."""
        return self.data[layer]


def _give_back_freed_memory() -> None:
    """Have the allocator return what it keeps of freed blocks; where it cannot be asked, it does so in its own time."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
