"""The closed config schema of the architectures we run, and the exact tensor set each config yields.

``config.json`` is read with bounds and ``type(x) is int``; a field that would change the computation and that we do not
know is refused by name, and nothing is allocated before the numbers are checked.
"""

import msgspec


class ConfigError(ValueError):
    """A config that cannot be run. ``field`` names the offender, ``mend`` says what to do."""

    def __init__(self, field: str, message: str, mend: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.mend = mend


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder-only transformer of the Llama family. Sizes in elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_tokens: int
    rms_norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    weight_dtype: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
