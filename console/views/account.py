"""One's own account: the name here; address, password, second factor and sessions are django-allauth's pages."""

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.cache import add_never_cache_headers
from django.views.decorators.http import require_http_methods

from console.errors import show_faults
from tenants.errors import Invalid
from tenants.selectors import memberships
from tenants.services.tenancy import rename_user


class NameForm(forms.Form):
    """How others see somebody."""

    name = forms.CharField(
        max_length=100, required=False, help_text="Members of your tenants see it beside your address"
    )


@require_http_methods(["GET", "POST"])
@login_required
def account(request: HttpRequest) -> HttpResponse:
    """Change one's name, and see where one belongs."""
    user = request.user
    form = NameForm(request.POST or None, initial={"name": user.name})  # type: ignore[union-attr]  # login_required
    if request.method == "POST" and form.is_valid():
        try:
            rename_user(user=user, name=form.cleaned_data["name"])  # type: ignore[arg-type]  # login_required
        except Invalid as error:
            show_faults(form, error)
        else:
            messages.success(request, "Your name is saved.")
            return redirect("console:account")
    places = memberships(user)  # type: ignore[arg-type]  # login_required
    status = 422 if form.is_bound else 200
    answer = render(request, "account/profile.html", {"form": form, "places": places}, status=status)
    add_never_cache_headers(answer)
    return answer
