"""One version: its checklist while it runs, what it holds, its files and card, and what differs from another."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.safestring import SafeString
from django.views.decorators.http import require_GET, require_http_methods

from console import model_words
from console.access import member_page
from controlplane.registry import lifecycle, selectors
from controlplane.registry.differences import Change, difference, part_of
from tenants.actor import Actor
from tenants.errors import Conflict, NotFound
from tenants.roles import Permission

TABS = {"overview": "Overview", "files": "Files", "card": "Model card", "compare": "Compare"}
_WHOLE = ("ready", "archived")
_UNDERWAY = ("uploading", "validating")
_ENDED = ("passed", "failed", "not_run")
_Tab = tuple[Any, dict[str, Any]]
"""A version, whose class pages do not import, and what its tab shows."""


@require_GET
@member_page(Permission.MODELS_READ)
def detail(request: HttpRequest, actor: Actor, version_id: str) -> HttpResponse:
    """Show one version, a tab at a time; the overview asks again while the version is on its way."""
    tab = request.GET.get("tab", "overview")
    if tab not in TABS:
        raise NotFound(f"A version has no tab {tab!r}.")
    version, context = _TAB_CONTEXTS[tab](request, actor, version_id)
    context |= {**_about(actor, version), "tabs": TABS, "tab": tab, "live": f"console/parts/version_{tab}.html"}
    partial = request.headers.get("HX-Request")
    return render(request, "console/parts/version_live.html" if partial else "console/pages/version.html", context)


@require_http_methods(["GET", "POST"])
@member_page(Permission.MODELS_WRITE)
def archive(request: HttpRequest, actor: Actor, version_id: str) -> HttpResponse:
    """Say what ends, ask for the version's name, then archive it."""
    return _end(request, actor, version_id, "console/pages/version_archive.html", _archive)


@require_http_methods(["GET", "POST"])
@member_page(Permission.MODELS_WRITE, recently=True)
def delete(request: HttpRequest, actor: Actor, version_id: str) -> HttpResponse:
    """Name what depends on the version, ask for its name, then delete it."""
    return _end(request, actor, version_id, "console/pages/version_delete.html", _delete)


def named(version: Any) -> str:  # noqa: ANN401 - a row, whose class pages do not import
    """Return the name under which people speak of a version: ``tiny v3``."""
    return f"{version.model.name} v{version.number}"


def _end(
    request: HttpRequest, actor: Actor, version_id: str, page: str, act: Callable[[Actor, Any], HttpResponse | str]
) -> HttpResponse:
    found = selectors.get_version_detail(actor=actor, version_id=version_id)
    context = {**_about(actor, found.version), "found": found}
    if request.method == "GET":
        return render(request, page, context)
    if request.POST.get("confirm", "") != context["name"]:
        context["fault"] = "This is not the version’s name."
        return render(request, page, context, status=422)
    try:
        answer = act(actor, found.version)
    except Conflict as error:
        context["fault"] = error.message
        return render(request, page, context, status=422)
    if isinstance(answer, str):
        messages.success(request, answer)
        return redirect("console:version", tenant=actor.tenant.slug, version_id=version_id)
    messages.success(request, f"{context['name']} is deleted. Its number is not used again.")
    return answer


def _archive(actor: Actor, version: Any) -> str:  # noqa: ANN401 - a row
    lifecycle.archive_version(actor=actor, version_id=version.id)
    return f"{named(version)} is archived. What serves it goes on."


def _delete(actor: Actor, version: Any) -> HttpResponse:  # noqa: ANN401 - a row
    lifecycle.delete_version(actor=actor, version_id=version.id)
    return redirect("console:model", tenant=actor.tenant.slug, model_id=version.model_id)


# --- what the tabs show


def _about(actor: Actor, version: Any) -> dict[str, Any]:  # noqa: ANN401 - a row
    may_change = actor.may(Permission.MODELS_WRITE) and version.deleted_at is None
    return {
        "version": version,
        "name": named(version),
        "state_words": "It is deleted." if version.deleted_at else model_words.STATES[version.state],
        "is_whole": version.state in _WHOLE,
        "is_underway": version.state in _UNDERWAY and version.deleted_at is None,
        "may_change": may_change,
        "may_deploy": version.state == "ready" and not version.deleted_at and actor.may(Permission.DEPLOYMENTS_WRITE),
    }


def _overview(_request: HttpRequest, actor: Actor, version_id: str) -> _Tab:
    found = selectors.get_version_detail(actor=actor, version_id=version_id)
    version = found.version
    context: dict[str, Any] = {
        "found": found,
        "checks": [(check, _took_ms(check)) for check in found.checks],
        "num_ended": sum(check.state in _ENDED for check in found.checks),
        "running": next((check for check in found.checks if check.state == "running"), None),
    }
    if version.state in _WHOLE:
        config = version.checked_config
        context["config_words"] = model_words.sentence(config)
        context["config"] = [
            (model_words.field(name), model_words.value(getattr(config, name))) for name in config.__struct_fields__
        ]
        context["fits"] = selectors.memory_fits(actor=actor, config=config)
    return version, context


def _took_ms(check: Any) -> int | None:  # noqa: ANN401 - a row
    if check.state == "not_run" or check.started_at is None or check.ended_at is None:
        return None
    took: timedelta = check.ended_at - check.started_at
    return round(took.total_seconds() * 1000)


def _files(_request: HttpRequest, actor: Actor, version_id: str) -> _Tab:
    version = selectors.get_version(actor=actor, version_id=version_id)
    return version, {"files": [(file, part_of(file.name).value) for file in version.files.all()]}


def _card(_request: HttpRequest, actor: Actor, version_id: str) -> _Tab:
    found = selectors.get_version_detail(actor=actor, version_id=version_id)
    return found.version, {"card": SafeString(found.card)}  # the selector has sanitised it


def _compare(request: HttpRequest, actor: Actor, version_id: str) -> _Tab:
    version = selectors.get_version(actor=actor, version_id=version_id)
    if version.state not in _WHOLE:
        return version, {"others": ()}
    whole = (other for other in selectors.list_versions(actor=actor) if other.state in _WHOLE)
    others = sorted((other for other in whole if other.id != version.id), key=lambda other: _farness(version, other))
    since = next((other for other in others if other.id == request.GET.get("since")), others[0] if others else None)
    if since is None:
        return version, {"others": ()}
    found = difference(selectors.content(since), selectors.content(version))
    return version, {
        "others": [(other.id, named(other)) for other in others],
        "since": since,
        "since_name": named(since),
        "fields": [
            (model_words.field(field.name), model_words.value(field.old), model_words.value(field.new))
            for field in (*found.counts, *found.config)
        ],
        "changed_files": [file for file in found.files if file.change is not Change.SAME],
        "same_files": [file.name for file in found.files if file.change is Change.SAME],
    }


def _farness(version: Any, other: Any) -> tuple[bool, int]:  # noqa: ANN401 - rows
    """Put the model's own versions first, the nearest number before the others."""
    return other.model_id != version.model_id, abs(other.number - version.number)


_TAB_CONTEXTS: dict[str, Callable[[HttpRequest, Actor, str], _Tab]] = {
    "overview": _overview,
    "files": _files,
    "card": _card,
    "compare": _compare,
}
