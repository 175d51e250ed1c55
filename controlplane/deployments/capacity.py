"""Whether a replica fits a device, and what its tenants are promised its KV pool. Pure, by the planner's arithmetic.

The fleet divides every share over the replicas, so even parts of what is promised must fit the smallest number of
replicas that the deployment may have.
"""

from collections.abc import Iterable, Mapping, Sequence

from dataplane.contracts import memory
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.replica import Device


class DoesNotFit(ValueError):
    """Guarantees or a cap that the pool cannot keep; the message has the numbers and the mend."""


class NoDevice(ValueError):
    """A kind of device that the fleet does not have; the message has the mend."""


def largest(configs: Iterable[ModelConfig]) -> ModelConfig:
    """Return the config whose tokens take the most KV memory: what fits with it fits with every arm."""
    return max(configs, key=lambda config: memory.kv_bytes_per_token(config, "fp32"))


def pool_blocks(config: ModelConfig, engine: EngineSettings) -> int:
    """Return the blocks of one replica's KV pool.

    Raises:
        DoesNotFit: the engine's KV memory is not stated, or too small for one block.
    """
    if engine.kv_memory_mb is None:
        raise DoesNotFit("State the deployment's KV memory: guarantees are checked against it.")
    blocks = memory.pool_blocks(config, engine)
    if blocks == 0:
        block_bytes = memory.block_bytes(config, engine)
        raise DoesNotFit(
            f"{engine.kv_memory_mb} MiB of KV memory hold no block of {engine.block_size} tokens, which takes "
            f"{block_bytes} bytes. Give the deployment at least {memory.mib(block_bytes)}."
        )
    return blocks


def pool_tokens(config: ModelConfig, engine: EngineSettings) -> int:
    """Return the tokens of one replica's KV pool. Raises as :func:`pool_blocks` does."""
    return pool_blocks(config, engine) * engine.block_size


def check_device(config: ModelConfig, engine: EngineSettings, devices: Sequence[Device]) -> None:
    """Accept a replica that some device of the fleet could hold, or refuse it with the numbers.

    Args:
        config: the model's.
        engine: how it would run.
        devices: what the fleet has; nothing is refused while that is not known.

    Raises:
        NoDevice: the fleet has no device of the kind that is asked for.
        DoesNotFit: a replica takes more than the largest such device can give.
    """
    if not devices:
        return
    able = [device for device in devices if engine.device in ("auto", device.kind)]
    if not able:
        kinds = ", ".join(sorted({device.kind for device in devices}))
        raise NoDevice(f"No machine of the fleet has a {engine.device} device. Choose auto or one of {kinds}.")
    plans = {device: memory.plan(config, engine, device.kind) for device in able}
    if any(plan.needed_bytes <= memory.usable_bytes(device) for device, plan in plans.items()):
        return
    device, plan = max(plans.items(), key=lambda planned: planned[0].memory_bytes)
    raise DoesNotFit(
        f"A replica takes {memory.mib(plan.needed_bytes)} ({plan.words}), and the largest device can give "
        f"{memory.mib(memory.usable_bytes(device))}. Lower the KV memory, or take a narrower precision."
    )


def check_shares(
    config: ModelConfig, engine: EngineSettings, shares: Mapping[str, Share], *, min_replicas: int
) -> None:
    """Accept the shares of a deployment's tenants (by name), or refuse them with the numbers.

    Raises:
        DoesNotFit: the guarantees, rounded up to blocks, are above the pool or leave no room for somebody's longest
            request, or one is above its own cap.
    """
    total_blocks = pool_blocks(config, engine)
    replicas = max(1, min_replicas)
    for name, share in shares.items():
        if share.cap_tokens is not None and share.cap_tokens < share.guarantee_tokens:
            raise DoesNotFit(
                f"The cap of {name} ({share.cap_tokens} tokens) is below its guarantee "
                f"({share.guarantee_tokens} tokens). Raise the cap or lower the guarantee."
            )
    promised_blocks = memory.promised_blocks(shares, engine.block_size, replicas)
    if promised_blocks > total_blocks:
        listed = ", ".join(
            f"{name} {share.guarantee_tokens}" for name, share in shares.items() if share.guarantee_tokens
        )
        raise DoesNotFit(
            f"Guarantees of {promised_blocks * engine.block_size * replicas} tokens ({listed}; rounded up to blocks of "
            f"{engine.block_size}) do not fit a pool of {memory.safe_guarantees(config, engine, replicas)} tokens "
            f"({replicas} x {engine.kv_memory_mb} MiB). Lower a guarantee, or give the deployment more KV memory."
        )
    longest_tokens = engine.max_model_len or config.context_tokens
    shut_out = memory.shut_out(shares, total_blocks, engine.block_size, longest_tokens, replicas)
    if shut_out is not None:
        name, needed_blocks, left_blocks = shut_out
        left_tokens = left_blocks * engine.block_size
        raise DoesNotFit(
            f"The longest request of {name} takes {needed_blocks * engine.block_size} tokens of KV memory, and beside "
            f"what the others are guaranteed a replica has {left_tokens}. Lower a guarantee or the context "
            f"(max_model_len), give {name} a cap of at most {left_tokens * replicas} tokens, or give the deployment "
            "more KV memory."
        )
