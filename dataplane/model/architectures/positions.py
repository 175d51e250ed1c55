"""The angles of rotary positions (Su et al., 2021), plain or stretched over a longer context than was trained."""

import math

import torch
from torch import Tensor

from dataplane.contracts.model_config import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling
from dataplane.kernels.rotary import frequencies
from dataplane.model.program import Angles


def angles(target: str, head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Angles:
    """Return the operation that writes the register ``target``."""
    plain = frequencies(head_dim, theta)
    if scaling is None:
        return Angles(target, plain)
    match scaling:
        case LinearScaling():
            scaled, scale = torch.tensor(plain) / scaling.factor, 1.0
        case Llama3Scaling():
            scaled, scale = _llama3(torch.tensor(plain), scaling), 1.0
        case YarnScaling():
            scaled, scale = _yarn(torch.tensor(plain), theta, scaling), _attention_factor(scaling)
    return Angles(target, tuple(scaled.tolist()), scale)


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    turns = scaling.original_context_tokens * plain / (2 * math.pi)
    kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / scaling.factor)


def _yarn(plain: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    def pair_of(turns: float) -> float:
        """The pair, of all, that turns so often over the original context."""
        return len(plain) * math.log(scaling.original_context_tokens / (turns * 2 * math.pi)) / math.log(theta)

    low = max(math.floor(pair_of(scaling.fast)), 0)
    high = min(math.ceil(pair_of(scaling.slow)), 2 * len(plain) - 1)
    # one border for both: a step, not a division by zero
    slope = (torch.arange(len(plain)) - low) / (high - low or 1e-3)
    stretched = slope.clamp(0, 1)
    return plain * (1 - stretched + stretched / scaling.factor)


def _attention_factor(scaling: YarnScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0
