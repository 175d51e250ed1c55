"""The model card: a stranger's Markdown as HTML that is safe to show.

Two walls: the parser escapes HTML instead of passing it on, and what it makes goes through an allow-list of elements,
attributes and link schemes. Pictures are left out: each would tell another site who looks at the page.
"""

from html import escape
from typing import Any

import nh3
from markdown_it import MarkdownIt

MAX_SHOWN_CHARS = 64 * 1024
"""So much is shown. Some Markdown takes a parser quadratic time (5 s at this length): a job parses it, never a page."""
_MAX_LINK_CHARS = 4 * MAX_SHOWN_CHARS
"""Of all addresses and titles. A reference writes one long address in three characters: a card of 64 KiB could become a
page of 300 MB."""
_ELEMENTS = {
    "a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip

_markdown = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])
_markdown.disable("image")


def to_html(text: str) -> str:
    """Return the HTML of the first :data:`MAX_SHOWN_CHARS` of ``text``, sanitised. Takes seconds at worst.

    A text that would grow without measure is shown as it is written.
    """
    shown = text[:MAX_SHOWN_CHARS]
    env: dict[str, Any] = {}
    tokens = _markdown.parse(shown, env)  # a long address is one string here, however often it is referred to
    inner = (child for token in tokens for child in token.children or ())
    if sum(len(str(value)) for token in inner for value in token.attrs.values()) > _MAX_LINK_CHARS:
        return sanitised(f"<pre>{escape(shown)}</pre>")
    return sanitised(_markdown.renderer.render(tokens, _markdown.options, env))


def sanitised(html: str) -> str:
    """Return ``html`` without anything that is not on the list. A page shows stored HTML through this, too."""
    return nh3.clean(
        html,
        tags=_ELEMENTS,
        attributes={"*": set(), "a": {"href"}},
        attribute_filter=_outward,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


def _outward(_element: str, attribute: str, value: str) -> str | None:
    """Drop links that lead to our own pages: a stranger's words beside our buttons."""
    outward = value.lower().startswith(("http://", "https://", "mailto:"))
    return value if attribute != "href" or outward else None
