"""The closed config schemas of the architectures we run, and the exact tensor set each config yields.

``config.json`` is read with bounds and ``type(x) is int``; a field that would change the computation and that we do not
know is refused by name, and nothing is allocated before the numbers are checked. Field names and defaults are those of
the config classes of transformers, versions 4 and 5.
"""

from typing import Final

from msgspec.structs import replace

from dataplane.contracts import strict_json
from dataplane.contracts.model_config.config import (
    ConfigError,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
)
from dataplane.contracts.model_config.decoder import Family, Shapes
from dataplane.contracts.model_config.fields import Fields, shown
from dataplane.contracts.model_config.gemma import GEMMA_2, GEMMA_3
from dataplane.contracts.model_config.gpt2 import GPT_2
from dataplane.contracts.model_config.llama import LLAMA, MISTRAL
from dataplane.contracts.model_config.quantisation import Stored, read_quantisation, stored
from dataplane.contracts.model_config.qwen import QWEN_2, QWEN_3

__all__ = [
    "FAMILIES", "MAX_CONFIG_BYTES", "ConfigError", "LinearScaling", "Llama3Scaling", "ModelConfig", "RopeScaling",
    "YarnScaling", "add_generation_config", "expected_tensors", "ignored_tensors", "parse_config", "stored_tensors",
    "tensor_name",
]  # fmt: skip

MAX_CONFIG_BYTES: Final = 256 * 1024
FAMILIES: Final = {
    family.model_type: family for family in (LLAMA, MISTRAL, QWEN_2, QWEN_3, GEMMA_2, GEMMA_3, GPT_2)
}  # fmt: skip
"""What can be run, by ``model_type``, which is also a config's ``architecture``."""


def parse_config(raw: bytes) -> ModelConfig:
    """Read a Hugging Face ``config.json``.

    Raises:
        ConfigError: not one of the architectures we run, a field outside its bounds, or a field we do not know.
    """
    fields = _fields(raw, "config.json")
    family = _family(fields)
    fields.refuse_code()
    config = replace(family.read(fields), quantisation=read_quantisation(fields, outputs_first=family.outputs_first))
    fields.close(family.fixed, family.harmless)
    return config


def add_generation_config(config: ModelConfig, raw: bytes) -> ModelConfig:
    """Return ``config`` with the end-of-text tokens that ``generation_config.json`` adds; the rest of it is not used.

    Chat models name the end of a turn there only.

    Raises:
        ConfigError: not a JSON object, or token ids outside the vocabulary.
    """
    added = _fields(raw, "generation_config.json").tokens("eos_token_id", config.vocab_size)
    return replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + added)))


def expected_tensors(config: ModelConfig) -> Shapes:
    """Return the exact tensors of the Hugging Face checkpoint by name; shapes are as stored, unless quantised."""
    return FAMILIES[config.architecture].tensors(config)


def stored_tensors(config: ModelConfig) -> dict[str, Stored]:
    """Return the exact tensors of the folder by name: as expected, but for the matrices that are quantised."""
    return {
        name: kept
        for whole, shape in expected_tensors(config).items()
        for name, kept in stored(whole, shape, config.quantisation).items()
    }


def ignored_tensors(config: ModelConfig) -> Shapes:
    """Return the tensors that older tools saved beside those: constants, which are made anew and never read."""
    return FAMILIES[config.architecture].ignored(config)


def tensor_name(config: ModelConfig, stored: str) -> str:
    """Return the name, as in :func:`expected_tensors`, of the tensor that a checkpoint calls ``stored``."""
    return FAMILIES[config.architecture].tensor_name(stored)


def _fields(raw: bytes, file_name: str) -> Fields:
    try:
        return Fields(strict_json.loads_object(raw, MAX_CONFIG_BYTES))
    except strict_json.StrictJsonError as error:
        raise ConfigError(file_name, str(error), f"Write {file_name} again as plain JSON.") from error


def _family(fields: Fields) -> Family:
    model_type = fields.get("model_type")
    family = FAMILIES.get(model_type) if type(model_type) is str else None
    if family is None:
        fields.refuse("model_type", f"{shown(model_type)} is not supported", f"Supported are {', '.join(FAMILIES)}.")
    classes = fields.get("architectures")
    if classes is not None and classes != [family.class_name]:
        fields.refuse(
            "architectures",
            f"{shown(classes)} is not supported",
            f"Supported for {family.model_type} is [{family.class_name!r}].",
        )
    return family
