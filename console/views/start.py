"""Get started: a checklist that ticks itself, up to the first request."""

from dataclasses import dataclass

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from console.access import member_page
from console.choices import chosen
from controlplane.deployments import selectors as deployments
from controlplane.metering import selectors as metering
from controlplane.registry import selectors as registry
from tenants import selectors as tenants
from tenants.actor import Actor
from tenants.roles import Permission

LANGUAGES = {"curl": "curl", "python": "Python", "javascript": "JavaScript"}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the way to the first answer; ``url`` leads to where it is taken."""

    done: bool
    title: str
    words: str
    action: str
    url: str


@require_GET
@member_page(Permission.KEYS_WRITE)
def start(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show what is done and what comes next; the live part asks again until the first request is there."""
    called = [item for item in deployments.list_deployments(actor=actor) if item.deployment.state == "active"]
    models = {item.name: item for item in called}
    live = [name for name, item in models.items() if item.state.standing is deployments.Standing.LIVE]
    model = chosen(request, "model", models, next(iter([*live, *models]), ""))
    steps = _steps(actor, model)
    context = {
        "steps": steps,
        "num_done": sum(step.done for step in steps),
        "models": list(models),
        "model": model or "YOUR-MODEL",
        "language": chosen(request, "lang", LANGUAGES, "curl"),
        "languages": LANGUAGES,
        "gateway_url": f"{settings.PAGODA_GATEWAY_URL}/v1",
    }
    template = "console/parts/start_live.html" if request.headers.get("HX-Request") else "console/pages/start.html"
    return render(request, template, context)


def _steps(actor: Actor, model: str) -> list[Step]:
    slug = actor.tenant.slug
    num_versions = sum(found.num_versions for found in registry.list_models(actor=actor))  # type: ignore[attr-defined]
    num_keys = sum(key.revoked_at is None for key in tenants.list_keys(actor=actor))
    requests = metering.list_requests(actor=actor, limit=1)
    return [
        Step(
            bool(num_versions or model),
            "Bring a model",
            "A version is ready to be deployed."
            if num_versions
            else "One is shared with you."
            if model
            else "Upload its folder; every check is shown live.",
            "Upload a model",
            reverse("console:models", args=[slug]),
        ),
        Step(
            bool(model),
            "Deploy it under a name",
            f"{model} can be called." if model else "Applications write the name as the model.",
            "Deploy a version",
            reverse("console:deployment-new", args=[slug]),
        ),
        Step(
            bool(num_keys),
            "Make a key",
            "Keep its text in PAGODA_API_KEY." if num_keys else "It is shown once. Keep it in PAGODA_API_KEY.",
            "Create a key",
            reverse("console:key-new", args=[slug]),
        ),
        Step(
            bool(requests),
            "Make the first call",
            f"Seen: {requests[0].request_id}." if requests else "Run the code below. This step ticks itself.",
            "See where its time went" if requests else "Or try the playground",
            reverse("console:request", args=[slug, requests[0].request_id])
            if requests
            else reverse("console:playground", args=[slug]),
        ),
    ]
