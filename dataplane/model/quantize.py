"""Makes a folder of quantised weights: ``python -m dataplane.model.quantize SRC DST --scheme int8|int4|kv-int8``.

DST is a model folder like SRC: what it stores instead of matrices is written in
:mod:`dataplane.contracts.model_config.quantisation`, and a replica computes with exactly these codes. It is a version
of its own, to be compared with its source; the same codes come from running SRC with ``--dtype int8`` or ``int4``.
"""

import argparse
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from dataplane.contracts.model_config import (
    FAMILIES,
    ConfigError,
    ModelConfig,
    expected_tensors,
    parse_config,
    stored_tensors,
)
from dataplane.contracts.model_config.quantisation import PARTS, SCHEMES, TURNED, precision_of, stored, written
from dataplane.inspect import names
from dataplane.inspect.safetensors_header import CODE_BYTES, DTYPE_BYTES
from dataplane.kernels import panels
from dataplane.model.checkpoint import Checkpoint, CheckpointError

_ROWS_AT_ONCE = 4096
_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_ELEMENT_BYTES = DTYPE_BYTES | CODE_BYTES
_HEADER_ALIGNMENT_BYTES = 8


class QuantizeError(RuntimeError):
    """A folder that cannot be quantised; the sentence says why and what to do."""


def quantize(source: Path, target: Path, scheme: str) -> None:
    """Write the folder ``source``, quantised, as the folder ``target``, which appears whole or not at all.

    Args:
        source: a model folder in fp32, fp16 or bf16.
        target: must not exist; its parent does.
        scheme: one of :data:`~dataplane.contracts.model_config.quantisation.SCHEMES`.

    Raises:
        QuantizeError: one of the folders does not allow it, or a value is too large.
        OSError: no space, no permission.
    """
    if target.exists():
        raise QuantizeError(f"{target} exists already: name a folder that does not")
    if not (source / names.CONFIG).is_file():
        raise QuantizeError(f"{source} is not a model folder: it has no {names.CONFIG}")
    raw = (source / names.CONFIG).read_bytes()
    try:
        config = parse_config(raw)
        _check(config, source, scheme)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as unfinished:
            made = Path(unfinished) / target.name
            made.mkdir()
            _copy(source, made, with_weights=scheme not in PARTS)
            changed = json.loads(raw) | {"quantization_config": written(scheme)}
            (made / names.CONFIG).write_text(json.dumps(changed, indent=2) + "\n")
            if scheme in PARTS:
                quantised = parse_config((made / names.CONFIG).read_bytes())
                _write(made / names.WEIGHTS, quantised, Checkpoint(source, config))
            made.rename(target)
    except ConfigError as error:
        raise QuantizeError(f"{names.CONFIG} of {source.name}: {error}. {error.mend}") from error
    except CheckpointError as error:
        raise QuantizeError(str(error)) from error


def _check(config: ModelConfig, source: Path, scheme: str) -> None:
    if config.quantisation:
        raise QuantizeError(f"{source} is quantised already ({config.quantisation}): take what it was made of")
    if scheme in PARTS and not FAMILIES[config.architecture].outputs_first:
        raise QuantizeError(f"{source} is a {config.architecture}: {TURNED}; run it with --dtype {scheme}")


def _copy(source: Path, made: Path, *, with_weights: bool) -> None:
    for path in sorted(source.iterdir()):
        weights = names.is_weights(path.name) or path.name == names.WEIGHTS_INDEX
        if path.is_file() and (with_weights or not weights):
            shutil.copy2(path, made / path.name)


def _write(path: Path, config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Write the tensors of the quantised ``config`` as one file, one matrix at a time."""
    whole = expected_tensors(config)
    dtypes = {
        name: dtype or _DTYPES[checkpoint.read(name).dtype] for name, (dtype, _) in stored_tensors(config).items()
    }
    header: dict[str, dict[str, object]] = {}
    end = 0
    for name, (_, shape) in stored_tensors(config).items():
        begin, end = end, end + torch.Size(shape).numel() * _ELEMENT_BYTES[dtypes[name]]
        header[name] = {"dtype": dtypes[name], "shape": shape, "data_offsets": (begin, end)}
    body = json.dumps(header).encode()
    body += b" " * (-len(body) % _HEADER_ALIGNMENT_BYTES)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(body)) + body)
        for name, shape in whole.items():
            for tensor in _parts(name, shape, config.quantisation, checkpoint.read(name)):
                file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)


def _parts(name: str, shape: tuple[int, ...], scheme: str, tensor: Tensor) -> Iterator[Tensor]:
    """Yield what is stored of a tensor, in the order of the header."""
    if list(stored(name, shape, scheme)) == [name]:
        yield tensor
        return
    precision = precision_of(name, scheme)
    try:
        firsts = range(0, len(tensor), _ROWS_AT_ONCE)
        pieces = [panels.quantise(tensor[first : first + _ROWS_AT_ONCE], precision) for first in firsts]
    except ValueError as error:
        raise QuantizeError(f"{name}: {error}") from error
    codes, *headers = (torch.cat(part) for part in zip(*pieces, strict=True))
    yield codes if precision == "int8" else codes[:, ::2] | codes[:, 1::2] << 4
    yield from headers


def main() -> int:
    """Read the command line and quantize."""
    parser = argparse.ArgumentParser(
        prog="python -m dataplane.model.quantize", description="Make a model folder with quantised weights."
    )
    parser.add_argument("source", type=Path, metavar="SRC", help="a model folder in fp32, fp16 or bf16")
    parser.add_argument("target", type=Path, metavar="DST", help="the folder to make")
    parser.add_argument("--scheme", choices=SCHEMES, required=True, help="weights in int8 or int4, or KV in int8")
    arguments = parser.parse_args()
    try:
        quantize(arguments.source, arguments.target, arguments.scheme)
    except (QuantizeError, OSError) as error:
        print(f"not quantised: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.target} holds {arguments.source.name} in {arguments.scheme}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
