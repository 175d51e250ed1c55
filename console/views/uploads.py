"""The page on which a browser uploads a version. It speaks to the API with the member's session.

The browser hashes the parts, sends them, and asks what is missing after any interruption: ``upload.js``.
"""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from console import model_folder
from console.access import member_page
from controlplane.registry import selectors, storage, stores, uploads
from tenants.actor import Actor
from tenants.roles import Permission

_UPLOADING, _WHOLE = "uploading", ("ready", "archived")
_RULES = {
    "taken": model_folder.TAKEN,
    "refusals": model_folder.REFUSALS,
    "needed": model_folder.NEEDED,
}


@require_GET
@member_page(Permission.MODELS_WRITE)
def new(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Ask for a model's name and its folder."""
    versions = selectors.list_versions(actor=actor)
    context: dict[str, Any] = {
        "models": sorted({version.model.name for version in versions}),
        "versions": [version for version in versions if version.state in _WHOLE],
        "model_name": request.GET.get("model", ""),
        "kept": storage.get_storage(actor=actor),
        "rules": _RULES,
    }
    return render(request, "console/pages/upload.html", context)


@require_GET
@member_page(Permission.MODELS_WRITE)
def detail(request: HttpRequest, actor: Actor, upload_id: str) -> HttpResponse:
    """Continue an upload; one that has ended is shown as the version that it became."""
    version = selectors.get_version(actor=actor, version_id=upload_id)
    if version.state != _UPLOADING:
        return redirect("console:version", tenant=actor.tenant.slug, version_id=upload_id)
    return render(request, "console/pages/upload.html", {"version": version, "rules": _RULES})


@require_POST
@member_page(Permission.MODELS_WRITE)
def abort(request: HttpRequest, actor: Actor, upload_id: str) -> HttpResponse:
    """Give an upload up; what has arrived is removed."""
    version = uploads.abort_upload(actor=actor, version_id=upload_id, store=stores.from_settings())
    messages.success(request, f"The upload of {version.model.name} v{version.number} is given up.")
    return redirect("console:model", tenant=actor.tenant.slug, model_id=version.model_id)
