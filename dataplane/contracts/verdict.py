"""The verdict on a model folder: what ``python -m dataplane.inspect DIR`` prints as one JSON object on its output.

The reader trusts nothing of it but its shape: it comes from a process that has read a stranger's bytes.
"""

import hashlib
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from dataplane.contracts.catalog import VersionFile
from dataplane.contracts.model_config import ModelConfig


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that is wrong: the file ("" is the folder as a whole), why, and what to do about it."""

    file: str
    reason: str
    mend: str


class CheckState(StrEnum):
    """How a check ended; NOT_RUN where an earlier one took its ground away."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the checklist."""

    name: str
    state: CheckState


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accepted when ``refusals`` is empty: then ``files`` is complete and ``config`` is there.

    ``files`` are sorted by name. ``weight_bytes`` is what the tensors take as they are stored. ``checks`` says how far
    the inspection came.
    """

    refusals: tuple[Refusal, ...] = ()
    files: tuple[VersionFile, ...] = ()
    config: ModelConfig | None = None
    num_parameters: int = 0
    weight_bytes: int = 0
    has_chat_template: bool = False
    checks: tuple[Check, ...] = ()


def version_digest(files: Iterable[VersionFile]) -> str:
    """Return the digest that names a version: the SHA-256 of what ``sha256sum`` prints of its files, sorted."""
    lines = sorted(f"{file.sha256}  {file.name}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def decode(raw: bytes) -> Verdict:
    """Read a verdict.

    Raises:
        msgspec.DecodeError: not one.
    """
    return msgspec.json.decode(raw, type=Verdict)
