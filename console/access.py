"""Who may open a page: one decorator a kind of page, which finds the actor before the view runs."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase

from tenants.actor import Actor, member_actor, platform_actor, require
from tenants.roles import Permission

_P = ParamSpec("_P")
_View = Callable[Concatenate[HttpRequest, Actor, _P], HttpResponseBase]
_HX_REDIRECT = "HX-Redirect"


def member_page(permission: Permission) -> Callable[[_View[_P]], Callable[..., HttpResponseBase]]:
    """Give the view the signed-in member of the tenant in the URL; a stranger finds no such page.

    Args:
        permission: what the page needs at least; services check again what is done on it.
    """

    def decorate(view: _View[_P]) -> Callable[..., HttpResponseBase]:
        @wraps(view)
        def page(request: HttpRequest, tenant: str, *args: _P.args, **kwargs: _P.kwargs) -> HttpResponseBase:
            if not request.user.is_authenticated:
                return _to_sign_in(request)
            actor = member_actor(request.user, tenant)
            require(actor, permission)
            request.actor = actor  # type: ignore[attr-defined]  # for the frame around the page
            return view(request, actor, *args, **kwargs)

        return page

    return decorate


def platform_page(permission: Permission) -> Callable[[_View[_P]], Callable[..., HttpResponseBase]]:
    """Give the view the signed-in platform admin; to others the page does not exist."""

    def decorate(view: _View[_P]) -> Callable[..., HttpResponseBase]:
        @wraps(view)
        def page(request: HttpRequest, *args: _P.args, **kwargs: _P.kwargs) -> HttpResponseBase:
            if not request.user.is_authenticated:
                return _to_sign_in(request)
            actor = platform_actor(request.user)
            require(actor, permission)
            request.actor = actor  # type: ignore[attr-defined]  # for the frame around the page
            return view(request, actor, *args, **kwargs)

        return page

    return decorate


def _to_sign_in(request: HttpRequest) -> HttpResponseBase:
    """Send a visitor to sign-in; a partial of an expired session takes the whole page there."""
    answer = redirect_to_login(request.get_full_path())
    if not request.headers.get("HX-Request"):
        return answer
    return HttpResponse(status=204, headers={_HX_REDIRECT: answer.url})
