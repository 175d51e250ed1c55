"""A decode step of a Llama-shaped model on the GPU's kernels, captured as one CUDA graph; random weights."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from dataplane.kernels.triton.gated import silu_mul
from dataplane.kernels.triton.kv_write import write_kv
from dataplane.kernels.triton.paged_attention import AttentionRows, attention_tiles, paged_attention
from dataplane.kernels.triton.rms_norm import rms_norm
from dataplane.kernels.triton.rotary import rotate_
from dataplane.kernels.triton.sampling import likeliest
from dataplane.kernels.triton.weight_only import Int4Weight, int4_linear, quantise_int4

BLOCK_SIZE = 8


@dataclass(frozen=True)
class Shape:
    """Sizes in elements; the default is that of a 1.2 B model."""

    hidden: int = 2048
    inner: int = 8192
    layers: int = 16
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 64
    vocab: int = 128_256


class DecodeStep:
    """``batch`` rows of ``context`` tokens each draw their likeliest next token; weights bf16, or int4 but the head."""

    def __init__(self, shape: Shape, batch: int, context: int, four_bits: bool, device: str) -> None:
        self.shape, self.device = shape, device
        heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        sizes = [(heads, shape.hidden), (shape.hidden, shape.heads * shape.head_dim)]
        sizes += [(2 * shape.inner, shape.hidden), (shape.hidden, shape.inner)]
        self.layers = [[self._weight(*size, four_bits) for size in sizes] for _ in range(shape.layers)]
        self.norm = torch.ones(shape.hidden, device=device)
        self.embedding = torch.randn(shape.vocab, shape.hidden, device=device).bfloat16() * 0.02
        blocks = -(-context // BLOCK_SIZE)
        pool = (shape.layers, batch * blocks, BLOCK_SIZE, 2, shape.kv_heads, shape.head_dim)
        self.pool = torch.randn(pool, device=device, dtype=torch.bfloat16)
        positions = torch.full((batch,), context - 1)
        tables = torch.randperm(batch * blocks).view(batch, blocks).int()
        rows = AttentionRows(
            positions.int(),
            attention_tiles(torch.ones_like(positions), positions, shape.heads // shape.kv_heads),
            tables,
            context,
        )
        names = ("positions", "tiles", "block_tables")
        self.rows = replace(rows, **{name: getattr(rows, name).to(device) for name in names})
        self.slots = (tables[:, -1].long() * BLOCK_SIZE + (context - 1) % BLOCK_SIZE).to(device)
        self.token_ids = torch.zeros(batch, dtype=torch.int64, device=device)
        turns = positions[:, None] * torch.rand(shape.head_dim // 2)
        self.angles = torch.stack((turns.cos(), turns.sin()), dim=-1).flatten(1).to(device)

    def __call__(self) -> None:
        """Run the step: the tokens drawn are the next step's."""
        shape = self.shape
        stream = F.embedding(self.token_ids, self.embedding).float()
        added = torch.zeros_like(stream, dtype=torch.bfloat16)
        for layer, (qkv, attention_out, gate_up, down) in enumerate(self.layers):
            heads = _linear(rms_norm(added, self.norm, 1e-5, stream), qkv).unflatten(1, (-1, shape.head_dim))
            rotate_(heads[:, : shape.heads + shape.kv_heads], self.angles)
            write_kv(heads[:, shape.heads :].unflatten(1, (2, -1)), self.slots, self.pool[layer])
            query = heads[:, : shape.heads]
            attended = paged_attention(query, self.pool[layer], self.rows, scale=shape.head_dim**-0.5)
            added = _linear(rms_norm(_linear(attended, attention_out), self.norm, 1e-5, stream), gate_up)
            added = _linear(silu_mul(added), down)
        logits = F.linear(rms_norm(added, self.norm, 1e-5, stream), self.embedding)
        self.token_ids.copy_(likeliest(logits).token_ids)

    @property
    def read_bytes(self) -> int:
        """What a step must read: every weight, and the keys and values of every row."""
        weights = [tensor for layer in self.layers for weight in layer for tensor in _tensors(weight)]
        return sum(tensor.nbytes for tensor in (*weights, self.embedding, self.pool))

    def _weight(self, outputs: int, inputs: int, four_bits: bool) -> Tensor | Int4Weight:
        matrix = torch.randn(outputs, inputs, device=self.device) * inputs**-0.5
        return quantise_int4(matrix) if four_bits else matrix.bfloat16()


def _linear(rows: Tensor, weight: Tensor | Int4Weight) -> Tensor:
    return int4_linear(rows, weight) if isinstance(weight, Int4Weight) else F.linear(rows, weight)


def _tensors(weight: Tensor | Int4Weight) -> tuple[Tensor, ...]:
    return (weight.codes, weight.scales, weight.minimums) if isinstance(weight, Int4Weight) else (weight,)
