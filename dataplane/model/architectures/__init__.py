"""One file for each way to compute: the program of a config, and its weights made of a checkpoint's tensors."""

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Final, Protocol

from torch import Tensor

from dataplane.contracts.model_config import ModelConfig
from dataplane.model.architectures import gemma, gpt2, llama
from dataplane.model.program import Program


class Architecture(Protocol):
    """What each file has."""

    def program(self, config: ModelConfig, /) -> Program:
        """Return the forward pass of ``config``."""

    def tensors(self, config: ModelConfig, read: Callable[[str], Tensor], /) -> Iterator[tuple[str, Tensor]]:
        """Yield the program's matrices [outputs, inputs] and vectors by name in the order of their use.

        Args:
            config: of the checkpoint.
            read: returns a checkpoint's tensor by name.
        """


ARCHITECTURES: Final = MappingProxyType[str, Architecture]({
    "llama": llama,
    "mistral": llama,
    "qwen2": llama,
    "qwen3": llama,
    "gemma2": gemma,
    "gemma3_text": gemma,
    "gpt2": gpt2,
})  # fmt: skip
"""By a config's ``architecture``: the keys of :data:`dataplane.contracts.model_config.FAMILIES`."""


def architecture_of(config: ModelConfig) -> Architecture:
    """Return the file that computes ``config``."""
    return ARCHITECTURES[config.architecture]
