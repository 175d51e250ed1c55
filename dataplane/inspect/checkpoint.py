"""The weights of a folder: one file or shards with an index, and exactly the tensors that the config yields."""

from collections.abc import Iterable, Mapping

from dataplane.contracts import strict_json
from dataplane.contracts.model_config import ModelConfig, ignored_tensors, stored_tensors, tensor_name
from dataplane.inspect import names
from dataplane.inspect.folder import File
from dataplane.inspect.refusals import Refusals, Refused, shown
from dataplane.inspect.safetensors_header import Tensor, header_length, read_header

_MAX_INDEX_BYTES = 16 * 1024 * 1024
_MEND_SHARDS = "Give every shard and the index, as save_pretrained wrote them."
_SHOWN = 3

Tensors = dict[str, Tensor]


def read_weights(files: Mapping[str, File], refusals: Refusals) -> dict[str, Tensors]:
    """Return the tensors of each safetensors file by name; what is wrong goes to ``refusals``."""
    found: dict[str, Tensors] = {}
    for name, file in files.items():
        if names.is_weights(name):
            with refusals.of(name):
                found[name] = read_header(_header(file), file.size_bytes)
    with refusals.of(""):
        _check_shards(files.keys())
    with refusals.of(names.WEIGHTS_INDEX):
        _check_index(files.get(names.WEIGHTS_INDEX), found)
    return found


def _header(file: File) -> bytes:
    return file.read(header_length(file.read(8), file.size_bytes), offset=8)


def _check_shards(present: Iterable[str]) -> None:
    """Either the one file, or shards 1 to N of N."""
    shards = [match for match in map(names.SHARD.fullmatch, present) if match]
    whole = names.WEIGHTS in present
    if whole and shards:
        raise Refused("it has model.safetensors and shards too", "Give the one or the others.")
    if not whole and not shards:
        raise Refused("it has no weights", f"Give {names.WEIGHTS}, or shards with their index.")
    if shards:
        counts = {int(match["count"]) for match in shards}
        numbers = {int(match["number"]) for match in shards}
        if len(counts) != 1 or numbers != set(range(1, counts.pop() + 1)):
            raise Refused("its shards are not complete", _MEND_SHARDS)


def _check_index(index: File | None, found: Mapping[str, Tensors]) -> None:
    """The index must say of every tensor where it really is. Nothing is ever opened by a name it gives."""
    sharded = any(names.SHARD.fullmatch(name) for name in found)
    if index is None:
        if sharded:
            raise Refused("it is missing", _MEND_SHARDS)
        return
    if found and not sharded:
        raise Refused("there is an index but no shards", "Leave the index out.")
    try:
        content = strict_json.loads_object(index.read_all(_MAX_INDEX_BYTES), _MAX_INDEX_BYTES)
    except strict_json.StrictJsonError as error:
        raise Refused(str(error), _MEND_SHARDS) from error
    unknown = content.keys() - {"metadata", "weight_map"}
    if unknown:
        raise Refused(f"its field {shown(min(unknown))} is not known", _MEND_SHARDS)
    there = {tensor: name for name, tensors in found.items() for tensor in tensors}
    if sum(map(len, found.values())) != len(there):
        raise Refused("two shards have a tensor of one name", _MEND_SHARDS)
    if content.get("weight_map") != there:
        raise Refused("its weight_map does not say where the tensors are", _MEND_SHARDS)


def named_tensors(config: ModelConfig, found: Mapping[str, Tensors]) -> Tensors:
    """Return the tensors of all files by their full names, without the constants that nobody reads.

    Raises:
        Refused: two tensors have one name.
    """
    stored = [(tensor_name(config, name), tensor) for tensors in found.values() for name, tensor in tensors.items()]
    there = dict(stored)
    if len(there) != len(stored):
        raise Refused("two tensors have one name", "Save the model again with save_pretrained.")
    ignored = ignored_tensors(config)
    return {name: tensor for name, tensor in there.items() if ignored.get(name) != tensor.shape}


def check_tensors(config: ModelConfig, found: Mapping[str, Tensors]) -> None:
    """Compare with what the config yields.

    Raises:
        Refused: tensors missing, too many, or of another shape; codes or scales of another dtype.
    """
    expected = stored_tensors(config)
    there = named_tensors(config, found)
    missing, extra = expected.keys() - there.keys(), there.keys() - expected.keys()
    if missing:
        raise Refused(f"the weights lack {_some(missing)}", "Give the whole checkpoint that belongs to config.json.")
    if extra == {"lm_head.weight"}:
        raise Refused(
            "the weights have lm_head.weight although config.json ties it to the embeddings",
            "Set tie_word_embeddings to false, or leave the tensor out.",
        )
    if extra:
        raise Refused(f"the weights have {_some(extra)}, which the config does not ask for", "Leave them out.")
    for name, (dtype, shape) in expected.items():
        if there[name].shape != shape:
            raise Refused(
                f"{name} has the shape {list(there[name].shape)}, config.json asks for {list(shape)}",
                "Give the config.json that belongs to the weights.",
            )
        if dtype and there[name].dtype != dtype:
            raise Refused(
                f"{name} has the dtype {there[name].dtype}, and it is {dtype} in weights of {config.quantisation}",
                "Quantise the original again.",
            )


def _some(tensor_names: Iterable[str]) -> str:
    ordered = sorted(tensor_names)
    rest = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + rest
