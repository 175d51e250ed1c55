"""Prices: what a million tokens cost from when on."""

from collections.abc import Sequence
from decimal import Decimal

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from console.access import platform_page
from console.errors import show_faults
from controlplane.deployments import selectors as deployments
from controlplane.metering import selectors, services
from tenants.actor import Actor
from tenants.errors import Conflict, Invalid
from tenants.roles import Permission

_MICROUSD = 1_000_000
_MAX_USD = Decimal(services.MAX_PRICE_MICROUSD) / _MICROUSD


class PriceForm(forms.Form):
    """A price. Dollars of a million tokens, to the micro-dollar."""

    deployment_id = forms.ChoiceField(label="Of", required=False)
    input_usd = forms.DecimalField(
        label="A million input tokens, USD", min_value=0, max_value=_MAX_USD, decimal_places=6
    )
    output_usd = forms.DecimalField(
        label="A million output tokens, USD", min_value=0, max_value=_MAX_USD, decimal_places=6
    )
    effective_from = forms.DateTimeField(
        label="From, UTC",
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
        help_text="Empty is now. Requests cost what is in force when they begin.",
    )


@require_http_methods(["GET", "POST"])
@platform_page(Permission.PLATFORM_QUOTAS)
def prices(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List the prices, those in force marked, and set a new one."""
    names = {item.id: f"{item.owner}/{item.name}" for item in deployments.list_all_deployments(actor=actor)}
    data = request.POST if request.method == "POST" else None
    form = PriceForm(data, use_required_attribute=False)
    field = form.fields["deployment_id"]
    assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared above
    field.choices = [("", "Every deployment without a price of its own"), *names.items()]
    if data is not None and form.is_valid() and _is_set(actor, form):
        messages.success(request, "The price is set.")
        return redirect("console:prices")
    context = {"form": form, "lines": _lines(actor, names)}
    return render(request, "console/pages/prices.html", context, status=200 if data is None else 422)


def _is_set(actor: Actor, form: PriceForm) -> bool:
    """Set what the form says; where it is refused, show why at its field."""
    filled = form.cleaned_data
    try:
        services.set_price(
            actor=actor,
            deployment_id=filled["deployment_id"],
            input_microusd=int(filled["input_usd"] * _MICROUSD),
            output_microusd=int(filled["output_usd"] * _MICROUSD),
            effective_from=filled["effective_from"],
        )
    except Invalid as error:
        show_faults(form, error)
    except Conflict as error:
        form.add_error("effective_from", error.message)
    else:
        return True
    return False


def _lines(actor: Actor, names: dict[str, str]) -> Sequence[tuple[object, str, str]]:
    """Return each price with whose it is and how it stands: the first that has begun is in force, newest first."""
    now, found, in_force = timezone.now(), [], set()
    for price in selectors.list_prices(actor=actor):
        standing = "planned" if price.effective_from > now else "past" if price.deployment_id in in_force else "active"
        if standing == "active":
            in_force.add(price.deployment_id)
        found.append((price, names.get(price.deployment_id, price.deployment_id), standing))
    return found
