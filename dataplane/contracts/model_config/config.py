"""What a config says of the computation, whichever family wrote it."""

import msgspec


class ConfigError(ValueError):
    """A config that cannot be run. ``field`` names the offender, ``mend`` says what to do."""

    def __init__(self, field: str, message: str, mend: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message
        self.mend = mend


class LinearScaling(msgspec.Struct, frozen=True, tag="linear"):
    """Positions are divided by ``factor`` (Chen et al., 2023)."""

    factor: float


class Llama3Scaling(msgspec.Struct, frozen=True, tag="llama3"):
    """Frequencies below ``low`` turns of the original context are divided by ``factor``, those above ``high`` are kept.

    Between the two they go over smoothly (Llama 3.1: Grattafiori et al., 2024).
    """

    factor: float
    low: float
    high: float
    original_context_tokens: int


class YarnScaling(msgspec.Struct, frozen=True, tag="yarn"):
    """YaRN (Peng et al., 2023): as :class:`Llama3Scaling`, between ``slow`` and ``fast`` turns, and warmer attention.

    ``attention_factor`` scales cosines and sines; None is what the paper gives for ``factor``.
    """

    factor: float
    fast: float
    slow: float
    original_context_tokens: int
    attention_factor: float | None


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


class ModelConfig(msgspec.Struct, frozen=True):
    """A decoder-only transformer. Sizes in elements.

    ``architecture`` is the family's ``model_type``. ``rms_norm_eps`` is the epsilon of every norm, of LayerNorms too.
    ``rope_theta`` is the base of rotary positions, 0 where positions are learned. ``weight_dtype`` (fp32, fp16 or bf16)
    is what the config declares, the file's tensors may have another. ``eos_token_ids`` may be empty.

    Attributes:
        rope_scaling: how rotary positions are stretched; those of sliding layers with a base of their own are not.
        sliding_rope_theta: the base of rotary positions in sliding layers, where it is another.
        sliding_window: tokens that a sliding layer sees, itself among them.
        sliding_layers: which layers see no more than that.
        attention_scale: what scores are multiplied by; None is 1 / sqrt(head_dim).
        attention_softcap: bound of scores.
        logit_softcap: bound of logits.
        quantisation: one of :data:`~dataplane.contracts.model_config.quantisation.SCHEMES`, or empty.
    """

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
    rope_scaling: RopeScaling | None = None
    sliding_rope_theta: float | None = None
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    attention_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    quantisation: str = ""

    @property
    def attention_out_bias(self) -> bool:
        """Whether the way out of attention has a bias; Qwen2 has one on queries, keys and values only."""
        return self.attention_bias and self.architecture != "qwen2"

    @property
    def head_norms(self) -> bool:
        """Whether queries and keys are normalised head by head."""
        return self.architecture in ("qwen3", "gemma3_text")

    def window(self, layer: int) -> int:
        """Return how many tokens ``layer`` sees, itself among them; 0 is all."""
        return (self.sliding_window or 0) if layer in self.sliding_layers else 0
