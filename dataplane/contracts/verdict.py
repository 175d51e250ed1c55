"""The verdict on a model folder: what ``python -m dataplane.inspect DIR`` prints as one JSON object on its output.

With ``--progress-fd N`` it also writes a :class:`Progress` a line to the descriptor N while it works. The reader trusts
nothing of either but its shape: they come from a process that has read a stranger's bytes.
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


CHECKS = (
    "files", "documents", "config", "weights", "tensors", "tokenizer", "chat_template", "finite", "digests",
    "tokenizer_trial", "template_trial",
)  # fmt: skip
"""The names of the checks, in the order they run. A verdict has each of them once."""

MAX_CARD_BYTES = 256 * 1024
"""So much of a README is kept."""


class CheckState(StrEnum):
    """How a check ended; NOT_RUN where an earlier one took its ground away."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the checklist. ``name`` is one of :data:`CHECKS`, ``ms`` what it took.

    ``reason`` and ``mend`` are there when it failed: the first thing that was wrong, and how many more there are.
    """

    name: str
    state: CheckState
    reason: str = ""
    mend: str = ""
    ms: int = 0


class ModelCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the folder's README says, as a stranger wrote it: Markdown to be sanitised, never HTML to be shown.

    ``text`` has at most :data:`MAX_CARD_BYTES` of UTF-8 without NUL and without the front matter; ``is_cut`` where
    there was more. The other fields are from the front matter, short and printable; ``license`` is from the licence
    file when the front matter names none, and "" when neither is known.
    """

    text: str = ""
    is_cut: bool = False
    license: str = ""
    base_models: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accepted when ``refusals`` is empty: then ``files`` is complete and ``config`` is there.

    ``files`` are sorted by name. ``weight_bytes`` is what the tensors take as they are stored, ``weight_dtypes`` (fp32,
    fp16, bf16) is what as. ``checks`` says how far the inspection came; in an accepted folder every one has passed.
    """

    refusals: tuple[Refusal, ...] = ()
    files: tuple[VersionFile, ...] = ()
    config: ModelConfig | None = None
    num_parameters: int = 0
    weight_bytes: int = 0
    has_chat_template: bool = False
    checks: tuple[Check, ...] = ()
    weight_dtypes: tuple[str, ...] = ()
    card: ModelCard = ModelCard()


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """News of one check: it has begun, it has come so far (bytes), or it is over."""

    check: str
    done_bytes: int = 0
    total_bytes: int = 0
    ended: Check | None = None


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


def decode_progress(line: bytes) -> Progress:
    """Read one line of progress.

    Raises:
        msgspec.DecodeError: not one.
    """
    return msgspec.json.decode(line, type=Progress)
