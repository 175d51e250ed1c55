"""Webhooks: where events are sent, what became of each message, and the secret, which is shown once."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console.access import member_page
from console.errors import show_faults
from controlplane.notifications import selectors, services
from controlplane.notifications.events import MEANINGS
from tenants.actor import Actor
from tenants.errors import Conflict, Invalid
from tenants.roles import Permission


class WebhookForm(forms.Form):
    """Where messages go, and of what."""

    url = forms.CharField(
        label="URL",
        max_length=1_000,
        widget=forms.TextInput(attrs={"inputmode": "url", "autocomplete": "off", "spellcheck": "false"}),
        help_text="It begins with https:// and is on the public internet.",
    )
    events = forms.MultipleChoiceField(
        label="What it is sent",
        choices=[(event.value, meaning) for event, meaning in MEANINGS.items()],
        widget=forms.CheckboxSelectMultiple,
    )


def webhook_state(webhook: Any) -> str:  # noqa: ANN401 - a row; the console knows no models
    """Return ``active``, ``failing`` or ``off``."""
    if not webhook.enabled:
        return "off"
    return "failing" if webhook.failing_since else "active"


@require_GET
@member_page(Permission.WEBHOOKS_READ)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List the webhooks, and what was announced last."""
    context = {
        "webhooks": [(webhook, webhook_state(webhook)) for webhook in selectors.list_webhooks(actor=actor)],
        "announcements": selectors.list_announcements(actor=actor),
        "may_change": actor.may(Permission.WEBHOOKS_WRITE),
        "sends_mail": settings.PAGODA_SENDS_MAIL,
    }
    return render(request, "console/pages/webhooks.html", context)


@require_GET
@member_page(Permission.WEBHOOKS_READ)
def detail(request: HttpRequest, actor: Actor, webhook_id: str) -> HttpResponse:
    """Show how a webhook fares, and its last messages."""
    webhook = selectors.get_webhook(actor=actor, webhook_id=webhook_id)
    context = {
        "webhook": webhook,
        "state": webhook_state(webhook),
        "deliveries": selectors.list_deliveries(actor=actor, webhook_id=webhook_id),
        "may_change": actor.may(Permission.WEBHOOKS_WRITE),
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/webhook_live.html" if partial else "console/pages/webhook.html", context)


@require_http_methods(["GET", "POST"])
@member_page(Permission.WEBHOOKS_WRITE)
def create(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Ask where to and of what; then show the secret, once."""
    if request.method == "GET":
        form = WebhookForm(initial={"events": list(MEANINGS)}, use_required_attribute=False)
        return render(request, "console/pages/webhook_new.html", {"form": form})
    form = WebhookForm(request.POST, use_required_attribute=False)
    if form.is_valid():
        try:
            issued = services.create_webhook(actor=actor, **form.cleaned_data)
        except Invalid as error:
            show_faults(form, error)
        except Conflict as error:
            form.add_error(None, error.message)
        else:
            return _reveal(request, issued, "The webhook is made.")
    return render(request, "console/pages/webhook_new.html", {"form": form}, status=422)


@require_http_methods(["GET", "POST"])
@member_page(Permission.WEBHOOKS_WRITE)
def change(request: HttpRequest, actor: Actor, webhook_id: str) -> HttpResponse:
    """Change where to, or of what."""
    webhook = selectors.get_webhook(actor=actor, webhook_id=webhook_id)
    if request.method == "GET":
        form = WebhookForm(initial={"url": webhook.url, "events": webhook.events}, use_required_attribute=False)
        return render(request, "console/pages/webhook_change.html", {"form": form, "webhook": webhook})
    form = WebhookForm(request.POST, use_required_attribute=False)
    if form.is_valid():
        try:
            services.update_webhook(actor=actor, webhook_id=webhook_id, **form.cleaned_data)
        except Invalid as error:
            show_faults(form, error)
        else:
            messages.success(request, "The webhook is changed.")
            return _back(actor, webhook_id)
    return render(request, "console/pages/webhook_change.html", {"form": form, "webhook": webhook}, status=422)


@require_http_methods(["GET", "POST"])
@member_page(Permission.WEBHOOKS_WRITE)
def rotate(request: HttpRequest, actor: Actor, webhook_id: str) -> HttpResponse:
    """Say what rotating does; then show the new secret, once."""
    webhook = selectors.get_webhook(actor=actor, webhook_id=webhook_id)
    if request.method == "GET":
        return render(request, "console/pages/webhook_rotate.html", {"webhook": webhook})
    issued = services.rotate_secret(actor=actor, webhook_id=webhook_id)
    return _reveal(request, issued, "The webhook has a new secret.")


@require_POST
@member_page(Permission.WEBHOOKS_WRITE)
def switch(request: HttpRequest, actor: Actor, webhook_id: str) -> HttpResponse:
    """Switch a webhook on or off, as the button says."""
    is_on = request.POST.get("on") == "1"
    services.update_webhook(actor=actor, webhook_id=webhook_id, enabled=is_on)
    messages.success(
        request, "The webhook is switched on." if is_on else "The webhook is switched off: nothing is sent to it."
    )
    return _back(actor, webhook_id)


@require_POST
@member_page(Permission.WEBHOOKS_WRITE)
def test(request: HttpRequest, actor: Actor, webhook_id: str) -> HttpResponse:
    """Send a message to this webhook alone."""
    services.send_test(actor=actor, webhook_id=webhook_id)
    messages.success(request, "A test is on its way. What comes of it is shown below within seconds.")
    return _back(actor, webhook_id)


@require_POST
@member_page(Permission.WEBHOOKS_WRITE)
def resend(request: HttpRequest, actor: Actor, webhook_id: str, message_id: str) -> HttpResponse:
    """Send a message once more."""
    services.resend_delivery(actor=actor, webhook_id=webhook_id, message_id=message_id)
    messages.success(request, "The message is on its way again, with the same id.")
    return _back(actor, webhook_id)


@require_http_methods(["GET", "POST"])
@member_page(Permission.WEBHOOKS_WRITE)
def delete(request: HttpRequest, actor: Actor, webhook_id: str) -> HttpResponse:
    """Say what will stop, ask for the host's name, then end the webhook for good."""
    webhook = selectors.get_webhook(actor=actor, webhook_id=webhook_id)
    if request.method == "GET":
        return render(request, "console/pages/webhook_delete.html", {"webhook": webhook})
    if request.POST.get("confirm", "") != webhook.host:
        context = {"webhook": webhook, "fault": "This is not the webhook's host."}
        return render(request, "console/pages/webhook_delete.html", context, status=422)
    services.delete_webhook(actor=actor, webhook_id=webhook_id)
    messages.success(request, f"The webhook to {webhook.host} is deleted.")
    return redirect("console:webhooks", tenant=actor.tenant.slug)


def _reveal(request: HttpRequest, issued: services.IssuedWebhook, headline: str) -> HttpResponse:
    return render(request, "console/pages/webhook_reveal.html", {"issued": issued, "headline": headline}, status=201)


def _back(actor: Actor, webhook_id: str) -> HttpResponse:
    return redirect("console:webhook", tenant=actor.tenant.slug, webhook_id=webhook_id)
