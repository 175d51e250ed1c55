"""A stranger's README as HTML that is safe to show."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.registry.cards import MAX_SHOWN_CHARS, sanitised, to_html

ATTACKS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "<a href='java&#115;cript:alert(1)'>x</a>",
    "![x](https://evil.example/seen.png)",
    "[x]: javascript:alert(1)\n[x]",
    "<javascript:alert(1)>",
    "<svg/onload=alert(1)>",
    "<style>body{display:none}</style>",
    "<iframe src=//evil.example></iframe>",
    '`` ` ``<b onmouseover="alert(1)">',
    "```html\n<script>alert(1)</script>\n```",
    '[x](https://a.example "onclick=alert(1)")',
    "<form action=/logout method=post>",
    "<!-- --!><script>alert(1)</script>",
    "<base href=//evil.example>",
    "[delete](/t/acme/versions/1/delete)",
    "[x](//evil.example)",
)
TAG = re.compile(r"<[^>]*>")
SAFE_TAG = re.compile(
    r"</?(?:blockquote|br|code|em|h[1-6]|hr|li|ol|p|pre|s|strong|table|tbody|td|th|thead|tr|ul)>"
    r'|<a(?: href="(?:https?://|mailto:)[^"]*")? rel="noopener noreferrer nofollow">|</a>'
)


def assert_safe(html: str) -> None:
    for tag in TAG.findall(html):
        assert SAFE_TAG.fullmatch(tag), tag


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_shown_as_text_or_not_at_all(attack):
    assert_safe(to_html(attack))
    assert_safe(sanitised(attack))
    assert 'evil.example/seen.png"' not in to_html(attack).replace('href="https://evil.example/seen.png"', "")


@given(st.lists(st.one_of(st.sampled_from(ATTACKS), st.text(max_size=20)), max_size=8).map("".join))
def test_no_mixture_makes_a_tag_that_is_not_on_the_list(text):
    assert_safe(to_html(text))


def test_what_people_write_is_kept():
    html = to_html("# Model\n\n* **bold** and `code`\n\n|a|b|\n|-|-|\n|1|2|\n\n[site](https://a.example)\n")
    for part in ("<h1>Model</h1>", "<strong>bold</strong>", "<code>code</code>", "<td>2</td>"):
        assert part in html
    assert '<a href="https://a.example" rel="noopener noreferrer nofollow">site</a>' in html


def test_a_long_card_is_cut():
    assert len(to_html("a" * (2 * MAX_SHOWN_CHARS))) < MAX_SHOWN_CHARS + 20


def test_references_still_make_links():
    assert 'href="https://a.example"' in to_html("[site]\n\n[site]: https://a.example\n")


@pytest.mark.parametrize("title", ["", ' "{}"'])
def test_a_long_address_that_is_referred_to_often_does_not_make_a_huge_page(title):
    long = "b" * 20_000
    card = f"[a]: https://a.example/{'' if title else long}{title.format(long)}\n\n" + "[a]" * 10_000
    html = to_html(card)
    assert len(html) < 2 * MAX_SHOWN_CHARS
    assert html.startswith("<pre>[a]: https://a.example/")
