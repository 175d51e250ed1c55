"""Reads rotary positions in every way that configs write them: version 4 of transformers, version 5, and both."""

from dataclasses import dataclass

from msgspec.structs import replace

from dataplane.contracts.model_config.config import (
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
)
from dataplane.contracts.model_config.fields import Fields, shown

_LEAST_THETA, _MOST_THETA = 1.0, 1e12
_MOST_FACTOR = 4096.0
_MOST_TURNS = 1e6


@dataclass(frozen=True, slots=True)
class _Rope:
    """What one object says; ``theta`` is None where it leaves that to another field."""

    theta: float | None
    scaling: RopeScaling | None


def with_rope(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Return ``config`` with the rotary positions of a model whose layers are all alike."""
    ropes = [
        _read(fields.object(field), config.context_tokens)
        for field in ("rope_scaling", "rope_parameters")
        if fields.get(field) is not None
    ]
    theta, scaling = _agreed(fields, "rope_theta", ropes, default=10_000.0)
    return replace(config, rope_theta=theta, rope_scaling=scaling)


def with_layered_rope(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Return ``config`` with rotary positions of full layers, and others of sliding ones, which nothing scales."""
    full, sliding = [], []
    if fields.get("rope_scaling") is not None:
        full.append(_read(fields.object("rope_scaling"), config.context_tokens))
    if fields.get("rope_parameters") is not None:
        layers = fields.object("rope_parameters")
        full.append(_read(layers.object("full_attention"), config.context_tokens))
        sliding.append(_read(layers.object("sliding_attention"), config.context_tokens))
        layers.only_read()
    theta, scaling = _agreed(fields, "rope_theta", full, default=1_000_000.0)
    sliding_theta, sliding_scaling = _agreed(fields, "rope_local_base_freq", sliding, default=10_000.0)
    if sliding_scaling is not None:
        fields.refuse("rope_parameters", "scaled rotary positions of sliding layers are not supported")
    return replace(config, rope_theta=theta, rope_scaling=scaling, sliding_rope_theta=sliding_theta)


def _agreed(fields: Fields, field: str, ropes: list[_Rope], *, default: float) -> tuple[float, RopeScaling | None]:
    thetas = {rope.theta for rope in ropes if rope.theta is not None}
    given = fields.optional_number(field, _LEAST_THETA, _MOST_THETA)
    if given is not None:
        thetas.add(given)
    if len(thetas) > 1:
        fields.refuse(field, "it is given twice with two values")
    scalings = {rope.scaling for rope in ropes}
    if len(scalings) > 1:
        fields.refuse("rope_scaling", "it contradicts rope_parameters")
    theta, scaling = thetas.pop() if thetas else default, scalings.pop() if scalings else None
    if isinstance(scaling, YarnScaling) and theta <= 1:
        fields.refuse(field, "yarn needs a base above 1")
    return theta, scaling


def _read(rope: Fields, context_tokens: int) -> _Rope:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("type", kind) != kind:
        rope.refuse("type", "it contradicts rope_type")
    if type(kind) is not str or kind not in ("default", "linear", "llama3", "yarn"):
        rope.refuse("rope_type", f"{shown(kind)} is not supported", "Supported are default, linear, llama3 and yarn.")
    theta = rope.number("rope_theta", _LEAST_THETA, _MOST_THETA) if "rope_theta" in rope else None
    scaling = _scaling(rope, kind, context_tokens)
    if rope.get("partial_rotary_factor", 1) != 1:
        rope.refuse("partial_rotary_factor", "only 1 is supported")
    rope.only_read()
    return _Rope(theta, scaling)


def _scaling(rope: Fields, kind: str, context_tokens: int) -> RopeScaling | None:
    if kind == "default":
        return None
    factor = rope.number("factor", 1.0, _MOST_FACTOR)
    if kind == "linear":
        return LinearScaling(factor)
    original_tokens = rope.integer("original_max_position_embeddings", 1, 1 << 24, default=context_tokens)
    if kind == "llama3":
        low = rope.number("low_freq_factor", 1e-3, _MOST_TURNS)
        high = rope.number("high_freq_factor", 1e-3, _MOST_TURNS)
        if high <= low:
            rope.refuse("high_freq_factor", f"{high:g} is not above low_freq_factor, {low:g}")
        return Llama3Scaling(factor, low, high, original_tokens)
    fast = rope.optional_number("beta_fast", 1e-3, _MOST_TURNS) or 32.0
    slow = rope.optional_number("beta_slow", 1e-3, _MOST_TURNS) or 1.0
    if fast < slow:
        rope.refuse("beta_fast", f"{fast:g} is below beta_slow, {slow:g}")
    if rope.get("truncate", True) is not True:
        rope.refuse("truncate", "only true is supported")
    return YarnScaling(factor, fast, slow, original_tokens, rope.optional_number("attention_factor", 1e-3, 1e3))
