"""The components a tokenizer may be made of, and the fields each may have: one closed table for each kind.

A field is judged by a predicate on its value, so a table reads like the library's own definition with bounds added.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

_MAX_TOKEN_CHARS = 1024
_MAX_PATTERN_CHARS = 2048
_MAX_INSERTED_CHARS = 64
_MAX_PARTS = 16
_MAX_DEPTH = 3
_MAX_GROWTH = 64


class TokenizerRefused(ValueError):
    """A tokenizer.json we do not load; ``mend`` says what to do."""

    def __init__(self, message: str, mend: str) -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend


def refuse(
    message: str, mend: str = "Byte-level BPE and Llama tokenizers, as transformers saves them, are supported."
) -> NoReturn:
    """Raise :class:`TokenizerRefused`."""
    raise TokenizerRefused(message, mend)


Json = Any
"""The value of a JSON text: it has any type, and every predicate begins by asking for it."""

Check = Callable[[Json], bool]


def is_bool(value: Json) -> bool:
    """Say whether ``value`` is true or false."""
    return type(value) is bool


def is_text(most: int) -> Check:
    """Return the check of a text of 1 to ``most`` characters."""
    return lambda value: type(value) is str and 0 < len(value) <= most


def one_of(*allowed: str) -> Check:
    """Return the check of a text out of ``allowed``."""
    return lambda value: type(value) is str and value in allowed


def _is_count(value: Json) -> bool:
    return type(value) is int and 0 <= value <= _MAX_PARTS


def _is_pattern(value: Json) -> bool:
    return (
        type(value) is dict
        and len(value) == 1
        and next(iter(value)) in ("String", "Regex")
        and is_text(_MAX_PATTERN_CHARS)(next(iter(value.values())))
    )


def _is_literal(value: Json) -> bool:
    return _is_pattern(value) and "String" in value


def _is_piece(value: Json) -> bool:
    if type(value) is not dict or len(value) != 1:
        return False
    kind, piece = next(iter(value.items()))
    return (
        kind in ("SpecialToken", "Sequence")
        and type(piece) is dict
        and piece.keys() == {"id", "type_id"}
        and (is_text(_MAX_TOKEN_CHARS) if kind == "SpecialToken" else one_of("A", "B"))(piece["id"])
        and _is_count(piece["type_id"])
    )


def _is_template(sequences: tuple[str, ...]) -> Check:
    def check(value: Json) -> bool:
        return (
            type(value) is list
            and len(value) <= _MAX_PARTS
            and all(map(_is_piece, value))
            and tuple(sorted(piece["Sequence"]["id"] for piece in value if "Sequence" in piece)) == sequences
        )

    return check


def _is_template_tokens(value: Json) -> bool:
    return (
        type(value) is dict
        and len(value) <= _MAX_PARTS
        and all(
            type(token) is dict
            and token.keys() == {"id", "ids", "tokens"}
            and token["id"] == name
            and type(token["ids"]) is type(token["tokens"]) is list
            and len(token["ids"]) == len(token["tokens"]) <= _MAX_PARTS
            and all(type(number) is int for number in token["ids"])
            and all(map(is_text(_MAX_TOKEN_CHARS), token["tokens"]))
            for name, token in value.items()
        )
    )


_OPTIONAL = {"use_regex", "split"}  # files of older releases lack them
_NOTHING: dict[str, Check] = {}
_BYTE_LEVEL = {"add_prefix_space": is_bool, "trim_offsets": is_bool, "use_regex": is_bool}
_BEHAVIOR = one_of("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
Table = Mapping[str, Mapping[str, Check]]

_NORMALIZERS: Table = {
    "Sequence": {"normalizers": lambda value: type(value) is list},
    "NFC": _NOTHING, "NFD": _NOTHING, "NFKC": _NOTHING, "NFKD": _NOTHING, "Lowercase": _NOTHING,
    "StripAccents": _NOTHING, "ByteLevel": _NOTHING,
    "Strip": {"strip_left": is_bool, "strip_right": is_bool},
    "Prepend": {"prepend": is_text(_MAX_INSERTED_CHARS)},
    "Replace": {"pattern": _is_pattern, "content": lambda value: value == "" or is_text(_MAX_INSERTED_CHARS)(value)},
}  # fmt: skip

_PRE_TOKENIZERS: Table = {
    "Sequence": {"pretokenizers": lambda value: type(value) is list},
    "ByteLevel": _BYTE_LEVEL,
    "Digits": {"individual_digits": is_bool},
    "Split": {"pattern": _is_pattern, "behavior": _BEHAVIOR, "invert": is_bool},
    "Metaspace": {"replacement": is_text(1), "prepend_scheme": one_of("first", "never", "always"), "split": is_bool},
    "Punctuation": {"behavior": _BEHAVIOR},
    "Whitespace": _NOTHING,
    "WhitespaceSplit": _NOTHING,
    "UnicodeScripts": _NOTHING,
}

_POST_PROCESSORS: Table = {
    "Sequence": {"processors": lambda value: type(value) is list},
    "ByteLevel": _BYTE_LEVEL,
    "TemplateProcessing": {
        "single": _is_template(("A",)), "pair": _is_template(("A", "B")), "special_tokens": _is_template_tokens,
    },
}  # fmt: skip

_DECODERS: Table = {
    "Sequence": {"decoders": lambda value: type(value) is list},
    "ByteLevel": _BYTE_LEVEL,
    "Replace": {"pattern": _is_literal, "content": lambda value: value == "" or is_text(_MAX_INSERTED_CHARS)(value)},
    "ByteFallback": _NOTHING,
    "Fuse": _NOTHING,
    "Strip": {"content": is_text(1), "start": _is_count, "stop": lambda value: value == 0 and type(value) is int},
}

COMPONENTS: dict[str, Table] = {
    "normalizer": _NORMALIZERS,
    "pre_tokenizer": _PRE_TOKENIZERS,
    "post_processor": _POST_PROCESSORS,
    "decoder": _DECODERS,
}


def check_component(value: Json, table: Table, where: str, depth: int = 0) -> None:
    """Check one component, and those inside a sequence.

    Raises:
        TokenizerRefused: a kind or a field that is not in ``table``; ``where`` names the place in the file.
    """
    kind = value.get("type") if type(value) is dict else None
    if type(kind) is not str or kind not in table:
        refuse(f"the {where} {str(kind)[:80]!a} is not supported")
    missing = table[kind].keys() - value.keys() - _OPTIONAL
    if missing:
        refuse(f"the {where} {kind} lacks the field {min(missing)}")
    for field, content in value.items():
        if field == "type":
            continue
        if field not in table[kind] or not table[kind][field](content):
            refuse(f"the field {field[:80]!a} of the {where} {kind} is not one we can read")
        if kind == "Sequence":
            if depth >= _MAX_DEPTH or len(content) > _MAX_PARTS:
                refuse(f"the {where} is a sequence that is too long or too deep")
            for part in content:
                check_component(part, table, where, depth + 1)


def check_growth(value: Json, where: str) -> None:
    """Check that a component that :func:`check_component` has passed makes a text at most :data:`_MAX_GROWTH` longer.

    Each step of a sequence multiplies: sixteen that double make a text of one letter longer than any memory.

    Raises:
        TokenizerRefused: it may grow more; ``where`` names the place in the file.
    """
    growth = _growth(value)
    if growth > _MAX_GROWTH:
        refuse(f"the {where} may make a text {growth} times as long, the limit is {_MAX_GROWTH}")


def _growth(value: Json) -> int:
    if value["type"] == "Sequence":
        parts = next(content for content in value.values() if type(content) is list)
        return math.prod(map(_growth, parts))
    if value["type"] == "Replace":
        kind, pattern = next(iter(value["pattern"].items()))
        inserted = len(value["content"])
        # An expression may match nothing, before each character.
        return inserted + 1 if kind == "Regex" else max(1, math.ceil(inserted / len(pattern)))
    return _BYTES_PER_CHARACTER if value["type"] == "ByteLevel" else 1


_BYTES_PER_CHARACTER = 4
"""Of UTF-8; the byte-level components write a character for each."""
