"""The memory planner's arithmetic: what a model's weights and keys and values take, from its config alone."""

import math

from dataplane.contracts.model_config import ModelConfig, expected_tensors

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


def num_parameters(config: ModelConfig) -> int:
    """Return the number of elements of all tensors of the checkpoint; tied embeddings count once."""
    return sum(math.prod(shape) for shape in expected_tensors(config).values())


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the bytes of the weights held in ``dtype``, a key of :data:`DTYPE_BYTES`.

    Raises:
        ValueError: an unknown dtype.
    """
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"unknown dtype {dtype!r}; known are {', '.join(DTYPE_BYTES)}")
    return num_parameters(config) * DTYPE_BYTES[dtype]


def kv_bytes_per_token(config: ModelConfig, kv_dtype_bytes: int) -> int:
    """Return the bytes that one token's keys and values take in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * kv_dtype_bytes


def kv_blocks(config: ModelConfig, kv_memory_bytes: int, block_size: int, kv_dtype_bytes: int) -> int:
    """Return how many whole blocks of ``block_size`` tokens fit ``kv_memory_bytes``; 0 when not even one does."""
    return max(kv_memory_bytes, 0) // (block_size * kv_bytes_per_token(config, kv_dtype_bytes))
