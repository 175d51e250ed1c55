"""Tiny models whose answers end by themselves after about a dozen tokens, or never; and versions, good and spoilt."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tiny_models import EOS_TOKEN_ID, make_tiny_llama, write_safetensors

Tensors = dict[str, npt.NDArray[np.float32]]
_PULL = 3.4
"""What the end of the turn has over another token, in logits: a chance of about one in twelve."""
_LAST_BIAS = "model.layers.1.mlp.down_proj.bias"
_SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "head_dim": 16, "context_tokens": 512}


def make_short_answers(folder: Path) -> Path:
    """Write the model to ``folder``.

    The last layer always says one thing besides its own, which the head takes for the end of the turn.
    """
    make_tiny_llama(folder, mlp_bias=True, **_SIZES)

    def pull(tensors: Tensors) -> None:
        said = np.zeros_like(tensors[_LAST_BIAS])
        said[: len(said) // 2] = 8.0
        tensors[_LAST_BIAS] = said
        tensors["model.norm.weight"] = np.ones_like(tensors["model.norm.weight"])
        heard = said / np.linalg.norm(said)
        head = tensors["lm_head.weight"]
        head -= np.outer(head @ heard, heard)  # the others are deaf to it
        head[EOS_TOKEN_ID] = heard * np.float32(_PULL / np.sqrt(len(said)))

    return _changed(folder, folder, pull)


def make_endless_answers(folder: Path) -> Path:
    """Write a model to ``folder`` whose answers are all as long as may be, none longer by chance."""
    make_tiny_llama(folder, **_SIZES)

    def hush(tensors: Tensors) -> None:
        tensors["lm_head.weight"][EOS_TOKEN_ID] = 0.0  # far below what the others come to

    return _changed(folder, folder, hush)


def a_little_different(folder: Path, source: Path, seed: int) -> Path:
    """Write another version to ``folder``: its content is new, its answers are as before."""
    noise = np.random.default_rng(seed)

    def touch(tensors: Tensors) -> None:
        head = tensors["lm_head.weight"]
        head += np.float32(1e-5) * noise.standard_normal(head.shape, dtype=np.float32)

    return _changed(folder, source, touch)


def shuffled(folder: Path, source: Path) -> Path:
    """Write a version whose weights are all there, in a wrong order: it answers on and on."""
    order = np.random.default_rng(1)

    def mix(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            tensors[name] = order.permutation(tensor)

    return _changed(folder, source, mix)


def _changed(folder: Path, source: Path, change: Callable[[Tensors], None]) -> Path:
    folder.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.name != "model.safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    tensors = _read(source / "model.safetensors")
    change(tensors)
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def _read(path: Path) -> Tensors:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = {name: entry for name, entry in json.loads(raw[8 : 8 + length]).items() if name != "__metadata__"}
    body = raw[8 + length :]
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], "<f4").reshape(entry["shape"]).copy()
        for name, entry in header.items()
    }
