"""The way in: where a signed-in person lands, and the theme."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from console.frame import AUTO, THEME_COOKIE, THEMES
from tenants.selectors import memberships

_YEAR_S = 365 * 24 * 3600


@require_GET
@login_required
def enter(request: HttpRequest) -> HttpResponse:
    """Go to the first tenant; an admin without one to the fleet; a person without either is told what to do."""
    places = memberships(request.user)  # type: ignore[arg-type]  # login_required
    if places:
        return redirect("console:home", tenant=places[0].tenant.slug)
    if request.user.is_platform_admin:  # type: ignore[union-attr]  # login_required
        return redirect("console:fleet")
    return render(request, "console/pages/no_tenant.html")


@require_POST
def set_theme(request: HttpRequest) -> HttpResponse:
    """Keep the theme in a cookie, so that the server draws the page in it and nothing flashes; ``auto`` keeps none."""
    chosen = request.POST.get("theme", "")
    back = request.POST.get("next", "/")
    if not url_has_allowed_host_and_scheme(back, allowed_hosts=None):
        back = "/"
    answer = redirect(back)
    if chosen == AUTO:
        answer.delete_cookie(THEME_COOKIE, samesite="Lax")
    elif chosen in THEMES:
        answer.set_cookie(THEME_COOKIE, chosen, max_age=_YEAR_S, samesite="Lax", httponly=True)
    return answer
