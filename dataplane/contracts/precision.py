"""In which precision a replica holds weights, keys and values: what may be asked for, and what follows for a model.

fp32, fp16 and bf16 round each value. int8 and int4 round it to one of 255 or 16 steps of its group of inputs (int8: 64
inputs, a scale; int4: 32, a scale and a minimum); weights in int4 have embeddings and head in int8
(:func:`~dataplane.contracts.model_config.quantisation.precision_of`). Keys and values in int8 have a scale for each
token and head. Pure.
"""

from dataplane.contracts.catalog import AUTO, EngineSettings
from dataplane.contracts.model_config import ModelConfig

BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "int8": 8, "int4": 4}
"""Of a weight of a layer, without its part of scales and minimums."""
WEIGHTS = tuple(BITS)
KEYS_AND_VALUES = ("fp32", "fp16", "bf16", "int8")
KV_CHOICES = (AUTO, *KEYS_AND_VALUES)
QUANTISED = frozenset({"int8", "int4"})
_KV_INT8 = "kv-int8"
"""The scheme of a folder that wants its keys and values in int8 and leaves its weights alone."""


def of_weights(config: ModelConfig, engine: EngineSettings) -> str:
    """Return the precision of a replica's weights: of a folder that is quantised its own, whatever the settings say."""
    return config.quantisation if config.quantisation in QUANTISED else engine.dtype


def of_keys_and_values(config: ModelConfig, engine: EngineSettings) -> str:
    """Return the precision of a replica's KV pool.

    ``auto`` is what the folder asks for, else that of the weights, and fp16 beside weights of integers.
    """
    if engine.kv_dtype != AUTO:
        return engine.kv_dtype
    if config.quantisation == _KV_INT8:
        return "int8"
    weights = of_weights(config, engine)
    return "fp16" if weights in QUANTISED else weights


def conflict(config: ModelConfig, engine: EngineSettings) -> str:
    """Say why weights cannot be held as ``engine`` asks, and what to do; empty where they can."""
    own = config.quantisation
    if own not in QUANTISED or engine.dtype not in QUANTISED or engine.dtype == own:
        return ""
    return (
        f"The weights are {own} already, and {engine.dtype} of them would be rounded twice. "
        f"Choose {own}, or quantise the original to {engine.dtype}."
    )
