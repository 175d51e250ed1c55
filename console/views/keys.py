"""API keys: made, shown once, rolled, revoked."""

from datetime import datetime

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from console.access import member_page
from console.errors import show_faults
from controlplane.deployments import selectors as deployments
from tenants import selectors
from tenants.actor import Actor
from tenants.errors import Invalid
from tenants.roles import Permission, Scope
from tenants.services import keys

_LIFETIMES = (("30", "30 days"), ("90", "90 days"), ("365", "One year"), ("", "It never ends"))
_SCOPE_LABELS = {
    Scope.INFERENCE: "Call models",
    Scope.READ: "Read models, deployments and usage through the API",
    Scope.DEPLOYMENTS: "Change deployments through the API",
}


class KeyForm(forms.Form):
    """What a new key may do, and how long."""

    name = forms.CharField(max_length=100, help_text="What uses it, such as “checkout service, production”.")
    scopes = forms.MultipleChoiceField(
        label="What it may do",
        choices=[(scope.value, label) for scope, label in _SCOPE_LABELS.items()],
        widget=forms.CheckboxSelectMultiple,
        initial=[Scope.INFERENCE.value],
    )
    deployment_ids = forms.MultipleChoiceField(
        label="Deployments it may call",
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="None chosen means all, those made later included.",
    )
    lifetime_days = forms.ChoiceField(label="It ends after", choices=_LIFETIMES, required=False, initial="90")


def _form(actor: Actor, data: object = None) -> KeyForm:
    form = KeyForm(data, use_required_attribute=False)  # type: ignore[arg-type]  # a QueryDict or None
    field = form.fields["deployment_ids"]
    assert isinstance(field, forms.MultipleChoiceField)  # noqa: S101 - declared above
    field.choices = [(item.deployment.id, item.name) for item in deployments.list_deployments(actor=actor)]
    return form


@require_GET
@member_page(Permission.KEYS_READ)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List the keys, those that count no more last."""
    now = timezone.now()
    lines = []
    for key in selectors.list_keys(actor=actor):
        older = [secret.expires_at for secret in key.secrets.all() if secret.expires_at and secret.expires_at > now]
        lines.append((key, key_state(key.revoked_at, key.expires_at, now), max(older, default=None)))
    context = {
        "lines": sorted(lines, key=lambda line: line[1] != "active"),
        "may_change": actor.may(Permission.KEYS_WRITE),
    }
    return render(request, "console/pages/keys.html", context)


def key_state(revoked_at: datetime | None, expires_at: datetime | None, now: datetime) -> str:
    """Return ``active``, ``revoked`` or ``ended``."""
    if revoked_at is not None:
        return "revoked"
    return "active" if expires_at is None or expires_at > now else "ended"


@require_http_methods(["GET", "POST"])
@member_page(Permission.KEYS_WRITE)
def create(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Ask what the key is for; then show its text, once."""
    if request.method == "GET":
        return render(request, "console/pages/key_new.html", {"form": _form(actor)})
    form = _form(actor, request.POST)
    if form.is_valid():
        chosen = form.cleaned_data
        try:
            issued = keys.issue_key(
                actor=actor,
                name=chosen["name"],
                scopes=[Scope(scope) for scope in chosen["scopes"]],
                deployment_ids=chosen["deployment_ids"] or None,
                lifetime_days=int(chosen["lifetime_days"]) if chosen["lifetime_days"] else None,
            )
        except Invalid as error:
            show_faults(form, error)
        else:
            return _reveal(request, issued, f"{issued.key.name} is made.")
    return render(request, "console/pages/key_new.html", {"form": form}, status=422)


@require_http_methods(["GET", "POST"])
@member_page(Permission.KEYS_WRITE)
def roll(request: HttpRequest, actor: Actor, key_id: str) -> HttpResponse:
    """Say what rolling does; then show the new text, once."""
    if request.method == "GET":
        return render(request, "console/pages/key_roll.html", {"key": selectors.get_key(actor=actor, key_id=key_id)})
    issued = keys.roll_key(actor=actor, key_id=key_id)
    return _reveal(request, issued, f"{issued.key.name} has a new secret. The old one is accepted for 24 more hours.")


def _reveal(request: HttpRequest, issued: keys.IssuedKey, headline: str) -> HttpResponse:
    return render(request, "console/pages/key_reveal.html", {"issued": issued, "headline": headline}, status=201)


@require_http_methods(["GET", "POST"])
@member_page(Permission.KEYS_WRITE)
def revoke(request: HttpRequest, actor: Actor, key_id: str) -> HttpResponse:
    """Name what will stop, ask for the key's name, then end the key for good."""
    key = selectors.get_key(actor=actor, key_id=key_id)
    if request.method == "GET":
        return render(request, "console/pages/key_revoke.html", {"key": key})
    if request.POST.get("confirm", "") != key.name:
        context = {"key": key, "fault": "This is not the key's name."}
        return render(request, "console/pages/key_revoke.html", context, status=422)
    keys.revoke_key(actor=actor, key_id=key_id)
    messages.success(request, f"{key.name} is revoked. Gateways refuse it within a second.")
    return redirect("console:keys", tenant=actor.tenant.slug)
