"""The forward pass of the Llama family over a paged KV pool.

Llama: Touvron et al., 2023; grouped queries: Ainslie et al., 2023; RMSNorm: Zhang and Sennrich, 2019.
Activations are fp32 whatever the weights' dtype; only weights, keys and values are narrower.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from dataplane.contracts.model_config import ModelConfig
from dataplane.kernels.linear import Linear
from dataplane.kernels.paged_attention import paged_attention
from dataplane.kernels.rotary import rotate_, rotations
from dataplane.model.batch import StepBatch
from dataplane.model.kv_pool import KvPool

MakeLinear = Callable[[Tensor, Tensor | None], Linear]


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One block: norms [hidden] in fp32, and four fused linear layers."""

    attention_norm: Tensor
    qkv: Linear
    attention_out: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Llama:
    """The model: pure functions of its weights. ``embedding`` is [vocab, hidden] in the weights' dtype."""

    config: ModelConfig
    embedding: Tensor
    layers: tuple[LlamaLayer, ...]
    norm: Tensor
    head: Linear

    @classmethod
    def from_tensors(
        cls,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        make_linear: MakeLinear,
        made: Callable[[str], None] = lambda name: None,
    ) -> Self:
        """Build the model from the tensors of the runtime format (:mod:`dataplane.model.packing`).

        ``made`` is called with the name of each linear weight once its layer stands.
        """

        def linear(name: str) -> Linear:
            layer = make_linear(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))
            made(f"{name}.weight")
            return layer

        def llama_layer(prefix: str) -> LlamaLayer:
            return LlamaLayer(
                attention_norm=tensors[f"{prefix}.attention_norm"],
                qkv=linear(f"{prefix}.qkv"),
                attention_out=linear(f"{prefix}.attention_out"),
                mlp_norm=tensors[f"{prefix}.mlp_norm"],
                gate_up=linear(f"{prefix}.gate_up"),
                down=linear(f"{prefix}.down"),
            )

        return cls(
            config=config,
            embedding=tensors["embedding.weight"],
            layers=tuple(llama_layer(f"layers.{index}") for index in range(config.num_layers)),
            norm=tensors["norm"],
            head=linear("embedding" if config.tied_embeddings else "head"),
        )

    def hidden(self, batch: StepBatch, pool: KvPool) -> Tensor:
        """Run the layers over a step, writing its keys and values to ``pool``.

        Returns:
            [n, hidden], in the order of the batch's tokens, before the last norm.
        """
        config = self.config
        pool.clear(batch.cleared_blocks)
        turns = rotations(batch.positions, config.head_dim, config.rope_theta)
        rows = F.embedding(batch.token_ids, self.embedding).float()
        for index, layer in enumerate(self.layers):
            rows = rows + self._attention(index, rows, turns, batch, pool)
            rows = rows + self._mlp(layer, rows)
        return rows

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [n, vocab] of ``hidden`` [n, hidden]."""
        return self.head(self._norm(hidden, self.norm))

    def _attention(self, index: int, rows: Tensor, turns: Tensor, batch: StepBatch, pool: KvPool) -> Tensor:
        config, layer = self.config, self.layers[index]
        qkv = layer.qkv(self._norm(rows, layer.attention_norm))
        heads = qkv.view(len(qkv), -1, config.head_dim)
        rotate_(heads[:, : config.num_heads + config.num_kv_heads], turns)
        pool.write(index, batch.slots, qkv[:, config.num_heads * config.head_dim :])
        return layer.attention_out(paged_attention(heads[:, : config.num_heads], pool.layer(index), batch.groups))

    def _mlp(self, layer: LlamaLayer, rows: Tensor) -> Tensor:
        gate, up = layer.gate_up(self._norm(rows, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up))

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows, weight.shape, weight, self.config.rms_norm_eps)
