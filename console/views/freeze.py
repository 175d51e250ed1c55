"""The switch that keeps every rollout where it is."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from console.access import platform_page
from controlplane.rollouts import selectors, services
from tenants.actor import Actor
from tenants.errors import Conflict, Invalid
from tenants.roles import Permission


@require_http_methods(["GET", "POST"])
@platform_page(Permission.PLATFORM_ROLLOUTS)
def freeze(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Say what stops and what does not, ask why, then freeze."""
    context: dict[str, object] = {"reason_max_chars": services.REASON_MAX_CHARS}
    if request.method == "POST":
        context["reason"] = request.POST.get("reason", "")
        try:
            services.freeze_rollouts(actor=actor, reason=request.POST.get("reason", ""))
        except Invalid as error:
            context["fault"] = error.fields["reason"]
        except Conflict as error:
            messages.warning(request, error.message)
            return redirect("console:platform-rollouts")
        else:
            messages.success(request, "All rollouts are frozen. Each can still be rolled back.")
            return redirect("console:platform-rollouts")
    context["live"] = selectors.list_rollouts(actor=actor, live_only=True)
    return render(request, "console/pages/freeze.html", context, status=422 if "fault" in context else 200)


@require_POST
@platform_page(Permission.PLATFORM_ROLLOUTS)
def unfreeze(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Let them go on."""
    services.unfreeze_rollouts(actor=actor)
    messages.success(request, "The freeze is lifted: what was due meanwhile happens within seconds.")
    return redirect("console:platform-rollouts")
