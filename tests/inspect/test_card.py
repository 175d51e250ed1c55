import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.verdict import MAX_CARD_BYTES, ModelCard
from dataplane.inspect.card import read_card, read_text
from dataplane.inspect.refusals import Refused

FRONT_MATTER = """---
license: apache-2.0
language:
- en
- "fr"
base_model: [acme/base-1B, 'acme/other']
tags:
  - chat
  - <script>
library_name: transformers
- stray
---

# Tiny

text
"""


def test_the_front_matter_is_read_and_left_out_of_the_text() -> None:
    assert read_card(FRONT_MATTER, "") == ModelCard(
        text="# Tiny\n\ntext\n",
        license="apache-2.0",
        base_models=("acme/base-1B", "acme/other"),
        languages=("en", "fr"),
        tags=("chat",),
    )


def test_lines_may_end_as_on_windows() -> None:
    card = read_card(FRONT_MATTER.replace("\n", "\r\n"), "")
    assert (card.license, card.languages) == ("apache-2.0", ("en", "fr"))
    assert card.text.startswith("# Tiny")


@pytest.mark.parametrize("readme", ["", "# Title\n---\nlicense: mit\n---\n", "---\nlicense: mit\n", "----\nx\n---\n"])
def test_what_is_no_front_matter_is_text(readme: str) -> None:
    assert read_card(readme, "") == ModelCard(text=readme)


LICENSES = {
    "                              Apache License\n                        Version 2.0, January 2004": "apache-2.0",
    "MIT License\n\nCopyright (c) 2024": "mit",
    "Copyright\n\nPermission is hereby granted, free of charge, to any person": "mit",
    "GNU AFFERO GENERAL PUBLIC LICENSE\nVersion 3": "agpl-3.0",
    "All rights reserved.": "",
}


@pytest.mark.parametrize(("text", "name"), LICENSES.items())
def test_a_known_licence_is_named(text: str, name: str) -> None:
    assert read_card("# no front matter", text).license == name


def test_the_front_matter_says_more_of_the_licence_than_its_file() -> None:
    readme = "---\nlicense: other\nlicense_name: acme-community\n---\n"
    assert read_card(readme, "MIT License").license == "acme-community"


def test_a_long_readme_is_cut_between_characters() -> None:
    card = read_card("é" * MAX_CARD_BYTES, "")
    assert card.is_cut
    assert card.text == "é" * (MAX_CARD_BYTES // 2)
    odd = read_card("x" + "é" * MAX_CARD_BYTES, "")
    assert odd.text == "x" + "é" * (MAX_CARD_BYTES // 2 - 1)


@given(st.text(alphabet=st.sampled_from("-\n :[],'\"abclicense\t\0é"), max_size=300))
def test_any_text_gets_a_card(text: str) -> None:
    card = read_card("---\n" + text, text)
    assert len(card.text.encode()) <= MAX_CARD_BYTES
    for value in (card.license, *card.base_models, *card.languages, *card.tags):
        assert value.isprintable()


@pytest.mark.parametrize("raw", [b"\xff", b"a\0b", b"\xed\xa0\x80"])
def test_what_no_database_takes_is_no_text(raw: bytes) -> None:
    with pytest.raises(Refused):
        read_text(raw)
