"""What a ``tokenizer.json`` may contain: a closed list of components, bounded, checked before the library sees it.

The tokenizers library aborts the process on some files and panics on others, silently truncates prompts where the file
says so, and renumbers tokens that contradict its vocabulary. Such files are refused here with a sentence. Field names
are those of tokenizers 0.23's serialisation.
"""

from collections.abc import Iterator
from typing import NamedTuple

from dataplane.contracts import strict_json
from dataplane.text.detokenize import ByteLevel, Decoder, Pieces
from dataplane.text.tokenizer_components import (
    COMPONENTS,
    Check,
    Json,
    TokenizerRefused,
    check_component,
    check_growth,
    is_bool,
    is_text,
    one_of,
    refuse,
)

MAX_FILE_BYTES = 32 * 1024 * 1024
_MAX_VALUES = 1 << 22
_MAX_TOKENS = 1 << 20
_MAX_MERGES = 1 << 21
_MAX_TOKEN_CHARS = 1024
_TOP_LEVEL = {"version", "truncation", "padding", "added_tokens", "model", *COMPONENTS}


class Vocabulary(NamedTuple):
    """What the file says about its tokens: text by id, which of them are control tokens, and how they become text."""

    tokens: dict[int, str]
    special: dict[str, int]
    unknown_id: int | None
    decoder: Decoder

    @property
    def size(self) -> int:
        """One more than the highest id of a token that text may become: the model must have an embedding for each.

        Control tokens may have ids above. Gemma 3's text models have one, for the images of their sisters; transformers
        loads them, and fails on a prompt that has it.
        """
        control_ids = set(self.special.values()) - {self.unknown_id}
        return max((number for number in self.tokens if number not in control_ids), default=-1) + 1


def read_vocabulary(raw: bytes) -> Vocabulary:
    """Check a whole ``tokenizer.json``.

    Raises:
        TokenizerRefused: not JSON, or a component, a field or a number that is not on the list.
    """
    _check_values(raw)
    try:
        file = strict_json.loads_object(raw, MAX_FILE_BYTES)
    except strict_json.StrictJsonError as error:
        raise TokenizerRefused(str(error), "Save the tokenizer again with the tokenizers library.") from error
    unknown = sorted(file.keys() - _TOP_LEVEL)
    if unknown:
        refuse(f"the field {unknown[0][:80]!a} is not known")
    if file.get("version") != "1.0":
        refuse(f"its version is {str(file.get('version'))[:80]!a}, not '1.0'")
    for field in ("truncation", "padding"):
        if file.get(field) is not None:
            refuse(f"{field} is set, which would change prompts silently", f"Set {field} to null.")
    for field, table in COMPONENTS.items():
        if file.get(field) is not None:
            check_component(file[field], table, field)
            if field != "post_processor":  # it adds tokens, and no text
                check_growth(file[field], field)
    vocab, unknown_token = _bpe(file.get("model"))
    special = _added_tokens(file.get("added_tokens", []), vocab)
    tokens = {number: text for text, number in vocab.items()}
    _check_template(file.get("post_processor"), tokens)
    return Vocabulary(
        tokens=tokens,
        special=special,
        unknown_id=None if unknown_token is None else vocab[unknown_token],
        decoder=_decoder(file.get("decoder")),
    )


def _check_values(raw: bytes) -> None:
    """Refuse a file of too many values before one of them is made.

    Each value but the first is behind a comma or a bracket. Those inside of tokens count as well, which of an honest
    file are few: a vocabulary of 256 Ki tokens with 600,000 merges, each a list, has half of what is allowed.
    """
    if sum(raw.count(mark) for mark in (b",", b"[", b"{")) > _MAX_VALUES:
        refuse(f"it has more than {_MAX_VALUES} values")


_BPE_FIELDS: dict[str, Check] = {
    "type": one_of("BPE"),
    "dropout": lambda value: value is None or (type(value) in (int, float) and value == 0),
    "unk_token": lambda value: value is None or is_text(_MAX_TOKEN_CHARS)(value),
    "continuing_subword_prefix": lambda value: value in (None, ""),
    "end_of_word_suffix": lambda value: value in (None, ""),
    "fuse_unk": is_bool,
    "byte_fallback": is_bool,
    "ignore_merges": is_bool,
    "vocab": lambda value: type(value) is dict and 0 < len(value) <= _MAX_TOKENS,
    "merges": lambda value: type(value) is list and len(value) <= _MAX_MERGES,
}


def _bpe(model: Json) -> tuple[dict[str, int], str | None]:
    """Return vocabulary and unknown token of a BPE model."""
    if type(model) is not dict or model.get("type") != "BPE":
        kind = model.get("type") if type(model) is dict else model
        refuse(f"the model {str(kind)[:80]!a} is not supported", "Models with a BPE tokenizer are supported.")
    for field, value in model.items():
        if field not in _BPE_FIELDS or not _BPE_FIELDS[field](value):
            refuse(f"the field {field[:80]!a} of the BPE model is not one we can read")
    if "vocab" not in model or "merges" not in model:
        refuse("the BPE model lacks its vocabulary or its merges")
    vocab: dict[str, int] = model["vocab"]
    for text, number in vocab.items():
        if type(number) is not int or not 0 <= number < _MAX_TOKENS or not 0 < len(text) <= _MAX_TOKEN_CHARS:
            refuse(f"the vocabulary's entry {text[:80]!a} is out of bounds")
    if len(set(vocab.values())) != len(vocab):
        refuse("two tokens of the vocabulary have one id")
    for merge in model["merges"]:
        _check_merge(merge, vocab)
    unknown_token: str | None = model.get("unk_token")
    if unknown_token is not None and unknown_token not in vocab:
        refuse("the unknown token is not in the vocabulary")
    return vocab, unknown_token


def _check_merge(merge: Json, vocab: dict[str, int]) -> None:
    """A merge of tokens that do not exist makes the library panic."""
    parts = merge.split(" ") if type(merge) is str else merge
    if type(parts) is not list or len(parts) != 2 or not all(type(part) is str for part in parts):
        refuse("a merge is not a pair of tokens")
    left, right = parts
    if left not in vocab or right not in vocab or left + right not in vocab:
        refuse(f"the merge of {left[:40]!a} and {right[:40]!a} names tokens that are not in the vocabulary")


_ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _added_tokens(added: Json, vocab: dict[str, int]) -> dict[str, int]:
    """Put the added tokens into ``vocab`` and return the special ones.

    The library gives tokens that are not in the vocabulary the next free ids, whatever the file says: so the file must
    say just that.
    """
    if type(added) is not list or len(added) > _MAX_TOKENS:
        refuse("added_tokens is not a list")
    special: dict[str, int] = {}
    seen: set[str] = set()
    dense = len(vocab) == max(vocab.values(), default=-1) + 1
    for token in added:
        if (
            type(token) is not dict
            or token.keys() != {"id", "content", *_ADDED_FLAGS}
            or not is_text(_MAX_TOKEN_CHARS)(token["content"])
            or not all(type(token[flag]) is bool for flag in _ADDED_FLAGS)
        ):
            refuse("an entry of added_tokens is not one we can read")
        text, number = token["content"], token["id"]
        if text in seen:
            refuse(f"the added token {text[:80]!a} is there twice")
        seen.add(text)
        if text not in vocab and dense:
            vocab[text] = len(vocab)
        if type(number) is not int or vocab.get(text) != number:
            refuse(f"the added token {text[:80]!a} has an id that contradicts the vocabulary")
        if token["special"]:
            special[text] = number
    return special


def _templates(processor: Json) -> Iterator[dict[str, Json]]:
    if processor is None:
        return
    if processor["type"] == "TemplateProcessing":
        yield processor
    for part in processor.get("processors", []):
        yield from _templates(part)


def _check_template(processor: Json, tokens: dict[int, str]) -> None:
    """What a post-processor inserts must be the tokens it names; a name without a token makes the library panic."""
    for part in _templates(processor):
        named = {piece["SpecialToken"]["id"] for piece in part["single"] + part["pair"] if "SpecialToken" in piece}
        if not named <= part["special_tokens"].keys():
            refuse(f"the post-processor inserts {min(named)[:80]!a} without saying what it is")
        for token in part["special_tokens"].values():
            if any(tokens.get(number) != text for number, text in zip(token["ids"], token["tokens"], strict=True)):
                refuse(f"the post-processor inserts {token['id'][:80]!a} under an id of another token")


_CHAIN = ("Replace", "ByteFallback", "Fuse", "Strip")


def _decoder(value: Json) -> Decoder:
    """Return the decoder, one of the two that can be streamed exactly."""
    if value is not None and value["type"] == "ByteLevel":
        return ByteLevel()
    parts = value.get("decoders", []) if value is not None else []
    kinds = [part["type"] for part in parts]
    ranks = [_CHAIN.index(kind) if kind in _CHAIN else -1 for kind in kinds]
    strip = parts[-1] if kinds[-1:] == ["Strip"] else None
    once = all(kinds.count(kind) <= 1 for kind in _CHAIN[1:])
    if "Fuse" not in kinds or -1 in ranks or ranks != sorted(ranks) or not once:
        refuse(
            "the decoder is not supported",
            "Supported are ByteLevel, and Replace, ByteFallback, Fuse, Strip in that order.",
        )
    return Pieces(
        replacements=tuple((part["pattern"]["String"], part["content"]) for part in parts if part["type"] == "Replace"),
        byte_fallback="ByteFallback" in kinds,
        strip=strip["content"] if strip else " ",
        strip_count=strip["start"] if strip else 0,
    )
