"""What is around every page: the tenant, the navigation and the theme."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from django.http import HttpRequest
from django.urls import reverse

from console.in_flight import num_waiting
from tenants.actor import Actor, platform_actor
from tenants.roles import Permission
from tenants.selectors import memberships

THEME_COOKIE = "pagoda_theme"
AUTO = "auto"
"""The theme of whom the system's setting suits: no cookie is kept."""
THEMES = {AUTO: "Auto", "light": "Light", "dark": "Dark"}


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the navigation; ``waiting`` is how many things on its page wait for whoever sees it."""

    label: str
    url: str
    current: bool
    waiting: int = 0


_APPROVALS, _ALL_APPROVALS = "console:approvals", "console:platform-approvals"
_TENANT_ITEMS = (
    ("Home", "console:home", Permission.TENANT_READ),
    ("Get started", "console:start", Permission.KEYS_WRITE),
    ("Playground", "console:playground", Permission.PLAYGROUND_USE),
    ("Models", "console:models", Permission.MODELS_READ),
    ("Deployments", "console:deployments", Permission.DEPLOYMENTS_READ),
    ("Rollouts", "console:rollouts", Permission.ROLLOUTS_READ),
    ("Approvals", _APPROVALS, Permission.ROLLOUTS_APPROVE),
    ("Requests", "console:requests", Permission.REQUESTS_READ),
    ("API keys", "console:keys", Permission.KEYS_READ),
    ("Webhooks", "console:webhooks", Permission.WEBHOOKS_READ),
    ("Usage", "console:usage", Permission.USAGE_READ),
    ("Members", "console:members", Permission.MEMBERS_READ),
    ("Audit", "console:audit", Permission.AUDIT_READ),
)
_BELOW = {"console:models": ("versions/", "uploads/")}
"""Pages that belong to an entry although their address does not begin with its."""
_PLATFORM_ITEMS = (
    ("Health", "console:health"),
    ("Fleet", "console:fleet"),
    ("KV budgets", "console:budgets"),
    ("Warm pool", "console:warm-pool"),
    ("Rollouts", "console:platform-rollouts"),
    ("Approvals", _ALL_APPROVALS),
    ("Requests", "console:platform-requests"),
    ("Tenants", "console:tenants"),
    ("Prices", "console:prices"),
    ("Jobs", "console:jobs"),
    ("Audit", "console:platform-audit"),
)
_ACCOUNT = "/account/"
"""The pages of one's own account: of no tenant, but with the frame around them."""


def frame(request: HttpRequest) -> dict[str, Any]:
    """Context processor: theme and actor for every page, the navigation for a whole page of somebody signed in."""
    theme = request.COOKIES.get(THEME_COOKIE, AUTO)
    actor: Actor | None = getattr(request, "actor", None)
    context: dict[str, Any] = {"theme": theme if theme in THEMES else AUTO, "themes": THEMES, "actor": actor}
    has_frame = actor is not None or request.path.startswith(_ACCOUNT)
    if has_frame and request.user.is_authenticated and not request.headers.get("HX-Request"):
        context["nav_tenants"] = [member.tenant for member in memberships(request.user)]
        context["nav_items"] = _tenant_items(request, actor) if actor is not None else []
        context["nav_platform"] = _platform_items(request) if request.user.is_platform_admin else []
    return context


def _tenant_items(request: HttpRequest, actor: Actor) -> list[Item]:
    if actor.home is None:
        return []
    slug = actor.tenant.slug
    return [
        Item(
            label,
            url,
            _is_current(request, url, *_BELOW.get(name, ()), exact=name == "console:home"),
            num_waiting(request, actor) if name == _APPROVALS else 0,
        )
        for label, name, permission in _TENANT_ITEMS
        if actor.may(permission)
        for url in [reverse(name, args=[slug])]
    ]


def _platform_items(request: HttpRequest) -> list[Item]:
    return [
        Item(
            label,
            reverse(name),
            _is_current(request, reverse(name), exact=False),
            num_waiting(request, platform_actor(request.user)) if name == _ALL_APPROVALS else 0,  # type: ignore[arg-type]  # signed in
        )
        for label, name in _PLATFORM_ITEMS
    ]


def _is_current(request: HttpRequest, url: str, *siblings: str, exact: bool) -> bool:
    """Say whether the page is that of ``url`` or below it; ``siblings`` are pages beside it that belong to it."""
    if exact:
        return request.path == url
    return request.path.startswith((url, *(urljoin(url, sibling) for sibling in siblings)))
