"""The model card: a README as Markdown, and the few fields of its front matter that the console shows.

The front matter is YAML by custom. Only ``key: value``, ``key: [a, b]`` and ``key:`` over lines of ``- value`` are
read, and of values only short names; the rest is skipped, since nothing depends on it.
"""

import re
from collections.abc import Iterator

from dataplane.contracts.verdict import MAX_CARD_BYTES, ModelCard
from dataplane.inspect.refusals import Refused

_MAX_FRONT_MATTER_CHARS = 16 * 1024
_MAX_VALUES = 32
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(?P<fields>.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"(?P<key>license|license_name|base_model|language|tags):[ \t]*(?P<value>.*)", re.ASCII)
_ITEM = re.compile(r"[ \t]*-[ \t]+(?P<value>.*)", re.ASCII)
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/+:()-]{0,95}", re.ASCII)

_LICENSE_CHARS = 2048
_LICENSES = (  # a phrase of its first lines, and its SPDX identifier; the longer phrase first
    ("GNU AFFERO GENERAL PUBLIC LICENSE", "agpl-3.0"),
    ("GNU LESSER GENERAL PUBLIC LICENSE", "lgpl"),
    ("GNU GENERAL PUBLIC LICENSE", "gpl"),
    ("APACHE LICENSE VERSION 2.0", "apache-2.0"),
    ("MIT LICENSE", "mit"),
    ("PERMISSION IS HEREBY GRANTED, FREE OF CHARGE", "mit"),
    ("MOZILLA PUBLIC LICENSE VERSION 2.0", "mpl-2.0"),
    ("CREATIVE COMMONS ATTRIBUTION-NONCOMMERCIAL", "cc-by-nc"),
    ("CREATIVE COMMONS ATTRIBUTION", "cc-by"),
    ("LLAMA 2 COMMUNITY LICENSE", "llama2"),
    ("GEMMA TERMS OF USE", "gemma"),
)


def read_text(raw: bytes) -> str:
    """Return the text of a document.

    Raises:
        Refused: not UTF-8, or with NUL, which no database column takes.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused("it is not UTF-8 text", "Save it as UTF-8.") from error
    if "\0" in text:
        raise Refused("it has NUL characters, so it is not text", "Save it as UTF-8.")
    return text


def read_card(readme: str, license_text: str) -> ModelCard:
    """Return what a README and a licence file say; either may be ""."""
    fields: dict[str, list[str]] = {}
    body = readme
    front_matter = _FRONT_MATTER.match(readme[:_MAX_FRONT_MATTER_CHARS])
    if front_matter:
        body = readme[front_matter.end() :].lstrip("\r\n")
        fields = _fields(front_matter["fields"])
    raw = body.encode()
    named = fields.get("license_name", []) + fields.get("license", [])
    return ModelCard(
        text=raw[:MAX_CARD_BYTES].decode("utf-8", "ignore"),  # the cut may fall inside a character
        is_cut=len(raw) > MAX_CARD_BYTES,
        license=next(iter(named), _known_license(license_text)),
        base_models=tuple(fields.get("base_model", ())),
        languages=tuple(fields.get("language", ())),
        tags=tuple(fields.get("tags", ())),
    )


def _fields(front_matter: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    values: list[str] | None = None
    for line in front_matter.splitlines():
        field, item = _FIELD.fullmatch(line), _ITEM.fullmatch(line)
        if field:
            values = found.setdefault(field["key"], [])
            listed = field["value"].strip()
            parts = listed[1:-1].split(",") if listed.startswith("[") and listed.endswith("]") else [listed]
        elif item and values is not None:
            parts = [item["value"]]
        else:
            values, parts = None, []
        if values is not None:
            values += list(_names(parts))[: _MAX_VALUES - len(values)]
    return found


def _names(parts: list[str]) -> Iterator[str]:
    for part in parts:
        value = part.strip().strip("\"'")
        if _VALUE.fullmatch(value):
            yield value


def _known_license(text: str) -> str:
    words = " ".join(text[:_LICENSE_CHARS].upper().split())
    return next((name for phrase, name in _LICENSES if phrase in words), "")
