"""What a page's address may choose: only what exists."""

from collections.abc import Mapping

from django.http import HttpRequest


def chosen(request: HttpRequest, name: str, choices: Mapping[str, object], default: str) -> str:
    """Return the choice that the URL makes, or the default where it makes none that exists."""
    value = request.GET.get(name, default)
    return value if value in choices else default
