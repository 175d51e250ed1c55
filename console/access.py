"""Who may open a page: one decorator a kind of page, which finds the actor before the view runs."""

import time
from collections.abc import Callable
from functools import wraps

from allauth.account.authentication import get_authentication_records
from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.utils.cache import add_never_cache_headers

from tenants.actor import Actor, member_actor, platform_actor, require
from tenants.roles import Permission

_View = Callable[..., HttpResponseBase]
"""Called with the request and the actor, and the arguments of the URL but for the tenant."""
_Page = Callable[..., HttpResponseBase]
_FindActor = Callable[[HttpRequest, dict[str, str]], Actor]


def member_page(permission: Permission, *, recently: bool = False) -> Callable[[_View], _Page]:
    """Give the view the signed-in member of the tenant in the URL; a stranger finds no such page.

    Args:
        permission: what the page needs at least; services check again what is done on it.
        recently: whether the password must have been shown within the last minutes: for what an unlocked screen, or a
            stolen session, must not do.
    """

    def find(request: HttpRequest, arguments: dict[str, str]) -> Actor:
        return member_actor(request.user, arguments.pop("tenant"))  # type: ignore[arg-type]  # signed in

    return _page(find, permission, recently=recently)


def platform_page(permission: Permission, *, recently: bool = False) -> Callable[[_View], _Page]:
    """Give the view the signed-in platform admin; to others the page does not exist. Arguments as of a member's."""

    def find(request: HttpRequest, _: dict[str, str]) -> Actor:
        return platform_actor(request.user)  # type: ignore[arg-type]  # signed in

    return _page(find, permission, recently=recently)


def _page(find_actor: _FindActor, permission: Permission, *, recently: bool) -> Callable[[_View], _Page]:
    def decorate(view: _View) -> _Page:
        @wraps(view)
        def page(request: HttpRequest, **arguments: str) -> HttpResponseBase:
            if not request.user.is_authenticated:
                return _answered(request, redirect_to_login(request.get_full_path()))
            actor = find_actor(request, arguments)
            require(actor, permission)
            if recently and not _is_recent(request):
                return _answered(request, redirect_to_login(request.path, reverse("account_reauthenticate")))
            request.actor = actor  # type: ignore[attr-defined]  # for the frame around the page
            return _answered(request, view(request, actor, **arguments))

        return page

    return decorate


def _is_recent(request: HttpRequest) -> bool:
    """Say whether this session's person has just proven who it is; signing in counts."""
    proofs = get_authentication_records(request, request.user)
    return bool(proofs) and time.time() - proofs[-1]["at"] < settings.ACCOUNT_REAUTHENTICATION_TIMEOUT


def _answered(request: HttpRequest, answer: HttpResponseBase) -> HttpResponseBase:
    """Keep the answer out of every cache, and let a redirect of a partial take the whole page with it.

    No page of a member may be read with the Back button after signing out, and a partial has the URL of its page.
    """
    if isinstance(answer, HttpResponseRedirect) and request.headers.get("HX-Request"):
        answer = HttpResponse(status=204, headers={"HX-Redirect": answer.url})
    add_never_cache_headers(answer)
    return answer
