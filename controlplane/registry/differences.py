"""What differs between two versions, from what is known of them; no file is read again. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dataplane.contracts.catalog import VersionFile
from dataplane.contracts.model_config import ModelConfig, RopeScaling, stored_tensors

Value = str | int | float | bool | None | tuple[int, ...] | RopeScaling


class Part(StrEnum):
    """What a file of a version is for."""

    WEIGHTS = "weights"
    CONFIG = "config"
    GENERATION = "generation config"
    TOKENIZER = "tokenizer"
    DOCUMENT = "document"


class Change(StrEnum):
    """How a file differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field with two values."""

    name: str
    old: Value
    new: Value


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file in both, or in one of the two; sizes in bytes, None where it is not there."""

    name: str
    part: Part
    change: Change
    old_bytes: int | None
    new_bytes: int | None


@dataclass(frozen=True, slots=True)
class Content:
    """What two versions are compared by."""

    config: ModelConfig
    files: tuple[VersionFile, ...]
    num_parameters: int
    weight_bytes: int
    has_chat_template: bool
    licence: str


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs: fields of the config, counts of what is made of it, and every file with how it changed."""

    config: tuple[FieldChange, ...]
    counts: tuple[FieldChange, ...]
    files: tuple[FileChange, ...]

    def changed(self, part: Part) -> bool:
        """Say whether a file of that part differs."""
        return any(file.part is part and file.change is not Change.SAME for file in self.files)


_PARTS = {
    "config.json": Part.CONFIG,
    "generation_config.json": Part.GENERATION,
    "tokenizer.json": Part.TOKENIZER,
    "tokenizer_config.json": Part.TOKENIZER,
    "special_tokens_map.json": Part.TOKENIZER,
    "chat_template.jinja": Part.TOKENIZER,
}


def part_of(name: str) -> Part:
    """Return what a file is for, by its name."""
    if ".safetensors" in name:
        return Part.WEIGHTS
    return _PARTS.get(name, Part.DOCUMENT)


def difference(old: Content, new: Content) -> Difference:
    """Return what changed from ``old`` to ``new``."""
    return Difference(
        config=_changes(_config_fields(old.config), _config_fields(new.config)),
        counts=_changes(_counts(old), _counts(new)),
        files=_files(old.files, new.files),
    )


def _config_fields(config: ModelConfig) -> dict[str, Value]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


def _counts(content: Content) -> dict[str, Value]:
    return {
        "parameters": content.num_parameters,
        "tensors": len(stored_tensors(content.config)),
        "weight_bytes": content.weight_bytes,
        "files": len(content.files),
        "has_chat_template": content.has_chat_template,
        "licence": content.licence or None,
    }


def _changes(old: Mapping[str, Value], new: Mapping[str, Value]) -> tuple[FieldChange, ...]:
    return tuple(FieldChange(name, old[name], new[name]) for name in old if old[name] != new[name])


def _files(old: tuple[VersionFile, ...], new: tuple[VersionFile, ...]) -> tuple[FileChange, ...]:
    before, after = {file.name: file for file in old}, {file.name: file for file in new}
    return tuple(_file(name, before.get(name), after.get(name)) for name in sorted(before.keys() | after.keys()))


def _file(name: str, old: VersionFile | None, new: VersionFile | None) -> FileChange:
    if old is None or new is None:
        change = Change.ADDED if old is None else Change.REMOVED
    else:
        change = Change.SAME if old.sha256 == new.sha256 else Change.CHANGED
    old_bytes, new_bytes = (file.size_bytes if file is not None else None for file in (old, new))
    return FileChange(name, part_of(name), change, old_bytes, new_bytes)
