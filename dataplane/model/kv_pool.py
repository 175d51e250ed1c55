"""The KV pool: keys and values of every layer, in blocks that the engine hands out by number.

::

    data[layer]  block 0: [slot 0: K heads | V heads] [slot 1: K heads | V heads] ...   block 1: ...
    slot of a token = block id * block_size + offset in the block

int8 keeps one fp32 scale for each head of a slot in ``scales``, in the same order.
"""

import torch
from torch import Tensor

from dataplane.model.allocator import give_back_freed_memory
from dataplane.model.program import Program

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}


class KvPool:
    """Storage for ``num_blocks`` blocks of ``block_size`` tokens of a program's attention, in ``dtype`` of DTYPES.

    On ``device``: the kernels of CPU and GPU read the same layout.

    Memory is not touched before it is written, so a slot holds garbage (perhaps NaN) until a token's keys and values
    are; nobody reads it before.

    Raises:
        MemoryError: the machine refuses the allocation.
    """

    def __init__(self, program: Program, num_blocks: int, block_size: int, dtype: str, device: str = "cpu") -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV pool of {num_blocks} blocks of {block_size} tokens is empty")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self._device = device
        self._shape = (program.attended_layers, num_blocks, block_size, 2, program.num_kv_heads, program.head_dim)
        self.restore()

    def restore(self) -> None:
        """Take memory for the blocks, all of which hold garbage.

        Raises:
            MemoryError: the machine refuses the allocation.
        """
        try:
            self.data = torch.empty(self._shape, dtype=DTYPES[self.dtype], device=self._device)
            self.scales = torch.empty(self._shape[:-1] if self.dtype == "int8" else 0, device=self._device)
        except RuntimeError as error:
            raise MemoryError(
                f"no memory for a KV pool of {self.num_blocks} blocks of {self.block_size} tokens"
            ) from error

    def release(self) -> None:
        """Give the memory back to the machine. Nothing may be read or written before :meth:`restore`."""
        self.data = torch.empty(0, dtype=DTYPES[self.dtype])
        self.scales = torch.empty(0)
        give_back_freed_memory()

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Store ``keys_values`` [n, 2, kv_heads, head_dim] of ``layer`` at ``slots`` [n]: the plain-torch way."""
        data = self.data[layer].view(-1, *self._shape[3:])
        if self.dtype != "int8":
            data[slots] = keys_values.to(data.dtype)
            return
        scales = keys_values.abs().amax(dim=-1) / 127
        self.scales[layer].view(-1, *self._shape[3:5])[slots] = scales
        divisor = torch.where(scales == 0, torch.ones_like(scales), scales)[..., None]
        data[slots] = (keys_values / divisor).round().to(torch.int8)

    def read(self, layer: int, slots: Tensor) -> Tensor:
        """Return what is stored at ``slots`` [n], widened: [n, 2, kv_heads, head_dim]."""
        values = self.data[layer].view(-1, *self._shape[3:])[slots].float()
        if self.dtype != "int8":
            return values
        return values * self.scales[layer].view(-1, *self._shape[3:5])[slots][..., None]
