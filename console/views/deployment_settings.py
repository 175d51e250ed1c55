"""The settings of a deployment, and a new one: replicas, idle policy, schedules, precision, context."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from console.access import member_page
from console.deployment_forms import EngineForm, SettingsForms
from console.errors import show_faults
from console.idle import idle_words
from console.views.deployments import about, own
from controlplane.deployments import services
from controlplane.registry import selectors as registry
from dataplane.contracts.catalog import EngineSettings, IdlePolicy
from tenants.actor import Actor
from tenants.errors import Conflict, Invalid
from tenants.roles import Permission

_SHOWN = (
    "min_replicas", "max_replicas", "asleep_after_s", "warm_after_s", "disk_after_s", "cold_wait_s", "dtype",
    "max_model_len", "max_num_seqs", "kv_memory_mb", "kv_dtype", "device",
)  # fmt: skip
_READY = "ready"
_REVISION_DIGITS = 18
IDLE = {
    "ready": ("Always ready", 1, IdlePolicy()),
    "sleeps": ("Sleeps when idle", 0, IdlePolicy(asleep_after_s=300, warm_after_s=3600, disk_after_s=24 * 3600)),
    "least": ("Costs least", 0, IdlePolicy(disk_after_s=300)),
}
"""What a new deployment does when idle: a label, the replicas that are kept, the policy. The settings have the rest."""


class NewForm(forms.Form):
    """What is deployed under which name."""

    name = forms.CharField(
        max_length=64, label="Name", help_text="Applications write it as the model. Lower case, such as “chat”."
    )
    version_id = forms.ChoiceField(label="Version")
    idle = forms.ChoiceField(
        label="When idle",
        choices=[(name, f"{label}. {idle_words(policy)}") for name, (label, _, policy) in IDLE.items()],
        widget=forms.RadioSelect,
        initial="sleeps",
    )
    max_replicas = forms.IntegerField(label="Replicas at most", initial=1, min_value=1)
    dtype = EngineForm.base_fields["dtype"]
    kv_memory_mb = forms.IntegerField(
        label="KV memory of a replica, MiB", initial=services.DEFAULT_KV_MEMORY_MB, min_value=1
    )


@require_http_methods(["GET", "POST"])
@member_page(Permission.DEPLOYMENTS_WRITE)
def settings(request: HttpRequest, actor: Actor, deployment_id: str) -> HttpResponse:
    """Show the settings, and take changes if nobody else changed them meanwhile."""
    summary = own(actor, deployment_id)
    deployment = summary.deployment
    current = {name: getattr(deployment, name) for name in _SHOWN}
    data = request.POST if request.method == "POST" else None
    found = SettingsForms(current, deployment.keep_warm, data)
    if data is not None and found.is_valid() and _configured(actor, deployment_id, data.get("revision", ""), found):
        messages.success(request, f"The settings of {summary.name} are saved. Replicas follow one by one.")
        return redirect("console:deployment", tenant=actor.tenant.slug, deployment_id=deployment_id)
    context: dict[str, Any] = {
        **about(actor, summary),
        "tab": "settings",
        "forms": found,
        "revision": deployment.revision if data is None else data.get("revision", ""),
        "idle_words": idle_words(deployment.idle),
    }
    return render(request, "console/pages/deployment_settings.html", context, status=200 if data is None else 422)


def _configured(actor: Actor, deployment_id: str, revision: str, found: SettingsForms) -> bool:
    """Save what the forms say; where it is refused, show why at its field."""
    changes = services.Changes(**found.values())
    seen = int(revision) if revision.isdecimal() and len(revision) < _REVISION_DIGITS else 0
    try:
        services.configure_deployment(actor=actor, deployment_id=deployment_id, revision=seen, changes=changes)
    except Invalid as error:
        found.show(error)
    except Conflict as error:
        found.replicas.add_error(None, f"{error.message} Reload this page for what is set now.")
    else:
        return True
    return False


@require_http_methods(["GET", "POST"])
@member_page(Permission.DEPLOYMENTS_WRITE)
def create(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Ask for a version, a name, and what to do when idle; then deploy."""
    data = request.POST if request.method == "POST" else None
    versions = [version for version in registry.list_versions(actor=actor) if version.state == _READY]
    form = NewForm(data, initial={"version_id": request.GET.get("version", "")}, use_required_attribute=False)
    field = form.fields["version_id"]
    assert isinstance(field, forms.ChoiceField)  # noqa: S101 - declared above
    field.choices = [(version.id, f"{version.model.name} v{version.number}") for version in versions]
    if data is not None and form.is_valid():
        deployment = _deployed(actor, form)
        if deployment is not None:
            then = "Its first replica loads." if deployment.min_replicas else "The first call starts it."
            messages.success(request, f"{deployment.name} is deployed. {then}")
            return redirect("console:deployment", tenant=actor.tenant.slug, deployment_id=deployment.id)
    context = {"form": form, "has_versions": bool(versions)}
    return render(request, "console/pages/deployment_new.html", context, status=200 if data is None else 422)


def _deployed(actor: Actor, form: NewForm) -> Any:  # noqa: ANN401 - a row, whose class pages do not import
    """Deploy what the form says and return it; where it is refused, show why at its field and return None."""
    filled = form.cleaned_data
    _, min_replicas, policy = IDLE[filled["idle"]]
    try:
        return services.deploy_version(
            actor=actor,
            name=filled["name"],
            version_id=filled["version_id"],
            engine=EngineSettings(dtype=filled["dtype"], kv_memory_mb=filled["kv_memory_mb"]),
            min_replicas=min_replicas,
            max_replicas=filled["max_replicas"],
            idle=policy,
        )
    except Invalid as error:
        show_faults(form, error)
    except Conflict as error:
        form.add_error("name", error.message)
    return None
