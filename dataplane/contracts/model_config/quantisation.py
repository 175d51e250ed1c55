"""Folders that ``python -m dataplane.model.quantize`` made, and the tensors that stand in for their matrices.

A matrix ``NAME`` [outputs, inputs] of a folder in int8 or int4 is stored as

::

    NAME.codes      int8: I8 [outputs, groups x 64]; int4: U8 [outputs, groups x 16], inputs 0 and 1 of each two in the
                    low and the high nibble
    NAME.scales     F16 [outputs, groups]
    NAME.minimums   F16 [outputs, groups], int4 only

for groups of 64 or 32 inputs, the last filled up with zeros. value = scale x code in int8, minimum + scale x code in
int4. A folder of the scheme int4 holds the vocabulary's matrices in int8 (:func:`precision_of`). Everything else is
stored as it was, and a folder of the scheme kv-int8 is its source but for the config.
"""

from typing import Final

from dataplane.contracts.model_config.fields import Fields

SCHEMES: Final = ("int8", "int4", "kv-int8")
"""Weights as integers, or the wish that keys and values be kept as such."""
GROUP_INPUTS: Final = {"int8": 64, "int4": 32}
PARTS: Final = {"int8": ("codes", "scales"), "int4": ("codes", "scales", "minimums")}
TURNED: Final = "matrices of this family are stored inputs first, and are quantised only when they are loaded"
_METHOD: Final = "pagoda"
_CODE_DTYPES: Final = {"int8": "I8", "int4": "U8"}
_CODES_OF_A_BYTE: Final = {"int8": 1, "int4": 2}
_WITHOUT_VOCABULARY: Final = {"quant_method": _METHOD, "scheme": "int4"}
"""What folders in int4 had in their config while their vocabulary was int4 too."""

Stored = tuple[str, tuple[int, ...]]
"""dtype in the names of safetensors, empty for any float; and shape."""


def precision_of(name: str, weights: str) -> str:
    """Return the precision of the matrix ``name`` of a checkpoint or a program whose weights are in ``weights``.

    int4 is for the layers. Embeddings and head are in int8 beside it: of all matrices, 16 steps cost them the most
    (5 % of the bundled model's perplexity). What belongs to a layer has the layer's number in its name.

    Args:
        name: of a matrix.
        weights: a precision, or a scheme of weights.
    """
    in_layer = any(part.isdecimal() for part in name.split("."))
    return "int8" if weights == "int4" and not in_layer else weights


def read_quantisation(fields: Fields, *, outputs_first: bool) -> str:
    """Return the scheme of ``quantization_config``, empty where there is none; another tool's is refused.

    Args:
        fields: of the config.
        outputs_first: whether the family's matrices are [outputs, inputs], which groups of inputs need.
    """
    value = fields.get("quantization_config")
    if value is None:
        return ""
    if value == _WITHOUT_VOCABULARY:
        fields.refuse(
            "quantization_config",
            "embeddings and head are in int4, which is not read any more",
            "Quantise the original again: int4 holds them in int8 now.",
        )
    ours = next((scheme for scheme in SCHEMES if value == written(scheme)), "")
    if not ours or (ours in PARTS and not outputs_first):
        fields.refuse(
            "quantization_config",
            "weights quantised by another tool cannot be read" if not ours else TURNED,
            "Upload the weights in fp32, fp16 or bf16 and remove quantization_config.",
        )
    return ours


def written(scheme: str) -> dict[str, str]:
    """Return the ``quantization_config`` of a folder of ``scheme``."""
    vocabulary = precision_of("vocabulary", scheme)
    return {"quant_method": _METHOD, "scheme": scheme} | ({} if vocabulary == scheme else {"vocabulary": vocabulary})


def stored(name: str, shape: tuple[int, ...], scheme: str) -> dict[str, Stored]:
    """Return the tensors that a folder of ``scheme`` holds for the tensor ``name``: its parts, or itself."""
    if scheme not in PARTS or len(shape) != 2:
        return {name: ("", shape)}
    precision = precision_of(name, scheme)
    outputs, inputs = shape
    group = GROUP_INPUTS[precision]
    groups = -(-inputs // group)
    codes: Stored = (_CODE_DTYPES[precision], (outputs, groups * group // _CODES_OF_A_BYTE[precision]))
    halves: Stored = ("F16", (outputs, groups))
    return {f"{name}.{part}": codes if part == "codes" else halves for part in PARTS[precision]}
