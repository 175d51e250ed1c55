"""Whether the promises made to the tenants of a deployment fit its KV pool. Pure; the arithmetic is the planner's.

Every replica must be able to keep every guarantee alone: whatever number of them is left, no promise is broken.
"""

from collections.abc import Mapping

from dataplane.contracts import memory
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.model_config import ModelConfig

_MIB = 1024 * 1024


class DoesNotFit(ValueError):
    """Guarantees or a cap that the pool cannot keep; the message has the numbers and the mend."""


def pool_blocks(config: ModelConfig, engine: EngineSettings) -> int:
    """Return the blocks of one replica's KV pool.

    Raises:
        DoesNotFit: the engine's KV memory is not stated, or too small for one block.
    """
    if engine.kv_memory_mb is None:
        raise DoesNotFit("state the deployment's KV memory: guarantees are checked against it")
    kv_dtype_bytes = memory.DTYPE_BYTES[engine.dtype]
    blocks = memory.kv_blocks(config, engine.kv_memory_mb * _MIB, engine.block_size, kv_dtype_bytes)
    if blocks == 0:
        block_bytes = engine.block_size * memory.kv_bytes_per_token(config, kv_dtype_bytes)
        raise DoesNotFit(
            f"{engine.kv_memory_mb} MiB of KV memory hold no block of {engine.block_size} tokens "
            f"({block_bytes} bytes); give the deployment at least {-(-block_bytes // _MIB)} MiB"
        )
    return blocks


def check_shares(config: ModelConfig, engine: EngineSettings, shares: Mapping[str, Share]) -> None:
    """Accept the shares of a deployment's tenants (by name), or refuse them with the numbers.

    Raises:
        DoesNotFit: the guarantees, rounded up to blocks, are above the pool, or one is above its own cap.
    """
    total_blocks = pool_blocks(config, engine)
    for name, share in shares.items():
        if share.cap_tokens is not None and share.cap_tokens < share.guarantee_tokens:
            raise DoesNotFit(
                f"the cap of {name} ({share.cap_tokens} tokens) is below its guarantee "
                f"({share.guarantee_tokens} tokens); raise the cap or lower the guarantee"
            )
    promised_blocks = sum(-(-share.guarantee_tokens // engine.block_size) for share in shares.values())
    if promised_blocks > total_blocks:
        listed = ", ".join(
            f"{name} {share.guarantee_tokens}" for name, share in shares.items() if share.guarantee_tokens
        )
        raise DoesNotFit(
            f"guarantees of {promised_blocks * engine.block_size} tokens ({listed}) do not fit a pool of "
            f"{total_blocks * engine.block_size} tokens; lower a guarantee, or give the deployment more KV memory "
            f"than {engine.kv_memory_mb} MiB"
        )
