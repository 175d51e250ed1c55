"""Models and their aliases."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from console.access import member_page
from console.errors import show_faults
from controlplane.registry import lifecycle, selectors
from tenants.actor import Actor
from tenants.errors import Conflict, Invalid, NotFound
from tenants.roles import Permission

_READY, _UPLOADING = "ready", "uploading"


class AliasForm(forms.Form):
    """A name for a version."""

    name = forms.CharField(label="Alias", max_length=32, help_text="Such as “stable”. Applications call model@alias.")
    version_id = forms.ChoiceField(label="Version")

    def offer(self, versions: Sequence[Any]) -> None:
        """Let it name one of these versions."""
        field = self.fields["version_id"]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared above
        field.choices = [(version.id, f"v{version.number}") for version in versions if version.state == _READY]


@require_GET
@member_page(Permission.MODELS_READ)
def index(request: HttpRequest, actor: Actor) -> HttpResponse:
    """List the models with their newest version, and the uploads that wait to be continued."""
    newest: dict[str, Any] = {}
    versions = selectors.list_versions(actor=actor)
    for version in versions:
        if version.model_id not in newest:
            newest[version.model_id] = version
    context = {
        "models": [(model, newest.get(model.id)) for model in selectors.list_models(actor=actor)],
        "uploads": [version for version in versions if version.state == _UPLOADING],
        "may_change": actor.may(Permission.MODELS_WRITE),
    }
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/models_live.html" if partial else "console/pages/models.html", context)


@require_GET
@member_page(Permission.MODELS_READ)
def detail(request: HttpRequest, actor: Actor, model_id: str) -> HttpResponse:
    """Show one model: its versions, and the names that stand for them."""
    partial = request.headers.get("HX-Request")
    context = _about(actor, model_id, with_aliases=not partial)
    return render(request, "console/parts/model_live.html" if partial else "console/pages/model.html", context)


@require_POST
@member_page(Permission.MODELS_WRITE)
def set_alias(request: HttpRequest, actor: Actor, model_id: str) -> HttpResponse:
    """Let an alias stand for a version, a new alias or one that stood for another."""
    context = _about(actor, model_id, with_aliases=True, data=request.POST)
    form: AliasForm = context["form"]
    if form.is_valid():
        name, version_id = form.cleaned_data["name"], form.cleaned_data["version_id"]
        try:
            alias = lifecycle.set_alias(actor=actor, model_id=model_id, name=name, version_id=version_id)
        except Invalid as error:
            show_faults(form, error)
        except (Conflict, NotFound) as error:
            form.add_error("version_id", error.message)
        else:
            words = f"{context['model'].name}@{name} is version {alias.version.number} from now on."
            messages.success(request, words)
            return redirect("console:model", tenant=actor.tenant.slug, model_id=model_id)
    return render(request, "console/pages/model.html", context, status=422)


@require_http_methods(["GET", "POST"])
@member_page(Permission.MODELS_WRITE)
def delete_alias(request: HttpRequest, actor: Actor, model_id: str, alias: str) -> HttpResponse:
    """Name which calls will fail, ask for the alias, then end it."""
    model = selectors.get_model(actor=actor, model_id=model_id)
    row = next((row for row in selectors.list_aliases(actor=actor, model_id=model_id) if row.name == alias), None)
    if row is None:
        raise NotFound(f"{model.name} has no alias {alias}.")
    context: dict[str, Any] = {"model": model, "alias": row}
    if request.method == "POST":
        if request.POST.get("confirm", "") == alias:
            lifecycle.delete_alias(actor=actor, model_id=model_id, name=alias)
            messages.success(request, f"{model.name}@{alias} stands for nothing any more.")
            return redirect("console:model", tenant=actor.tenant.slug, model_id=model_id)
        context["fault"] = "This is not the alias."
    status = 200 if request.method == "GET" else 422
    return render(request, "console/pages/alias_delete.html", context, status=status)


def _about(actor: Actor, model_id: str, *, with_aliases: bool, data: Any = None) -> dict[str, Any]:  # noqa: ANN401 - a QueryDict
    model = selectors.get_model(actor=actor, model_id=model_id)
    versions = selectors.list_versions(actor=actor, model_id=model_id)
    form = AliasForm(data, use_required_attribute=False)
    form.offer(versions)
    return {
        "model": model,
        "versions": versions,
        "ready": [version for version in versions if version.state == _READY],
        "aliases": selectors.list_aliases(actor=actor, model_id=model_id) if with_aliases else (),
        "form": form,
        "may_change": actor.may(Permission.MODELS_WRITE),
        "may_deploy": actor.may(Permission.DEPLOYMENTS_WRITE),
    }
