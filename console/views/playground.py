"""The playground: a prompt, and the answer as it is made. It calls the gateway as any application does."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Protocol

import httpx
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from console.access import member_page
from console.templatetags.console import words
from controlplane.deployments import selectors
from controlplane.metering import selectors as metering
from dataplane.contracts.headers import PUBLIC_REQUEST_ID
from dataplane.contracts.usage import Outcome
from tenants.actor import Actor
from tenants.roles import Permission
from tenants.services.keys import playground_key

_RESTING = (selectors.Standing.ASLEEP, selectors.Standing.WARM, selectors.Standing.DISK)
MAX_BODY_BYTES = 256 * 1024
"""A prompt that is typed or pasted; applications send longer ones to the gateway."""
_TIMEOUT = httpx.Timeout(None, connect=5.0)
_NEWS_S, _LOOK_EVERY_S = 5.0, 0.1
"""For how long a key that a gateway does not know may be news to it: made with this very call, it is on its way."""
_UNREACHABLE = "The gateway cannot be reached. Try again in a moment."
_REFUSED = (httpx.codes.BAD_REQUEST, httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE)
"""Answers after which a request counts as refused, not as failed: the same as in its usage."""
_SERVED_VERSION, _SERVED_REPLICA = "x-served-version", "x-served-replica"


class Price(Protocol):
    """A line of the price list. Micro-USD per million tokens."""

    deployment_id: str
    input_microusd: int
    output_microusd: int
    effective_from: datetime


@require_GET
@member_page(Permission.PLAYGROUND_USE)
def playground(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show the form and the code that does the same."""
    listed = selectors.list_deployments(actor=actor) if actor.may(Permission.DEPLOYMENTS_READ) else []
    callable_ = [item for item in listed if item.deployment.state == "active"]
    prices = metering.list_prices(actor=actor) if actor.may(Permission.USAGE_READ) else []
    now = timezone.now()
    context = {
        "deployments": [(item, *price_at(prices, item.deployment.id, now)) for item in callable_],
        "resting": _RESTING,
        "chosen": request.GET.get("model", ""),
        "gateway_url": f"{settings.PAGODA_GATEWAY_URL}/v1",
        "outcomes": json.dumps({outcome.value: words(outcome.value) for outcome in Outcome}),
        "versions": json.dumps(
            {arm.version_id: f"{arm.version.model.name} v{arm.version.number}" for item in listed for arm in item.arms}
        ),
    }
    return render(request, "console/pages/playground.html", context)


def price_at(prices: Sequence[Price], deployment_id: str, moment: datetime) -> tuple[int | None, int | None]:
    """Return what input and output cost: the deployment's own price at ``moment``, else the default; None without one.

    Args:
        prices: the price list, newest first.
        deployment_id: what is called.
        moment: when.
    """
    for owner in (deployment_id, ""):
        for price in prices:
            if price.deployment_id == owner and price.effective_from <= moment:
                return price.input_microusd, price.output_microusd
    return None, None


@require_POST
@member_page(Permission.PLAYGROUND_USE)
def stream(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Pass a chat call on to the gateway with the member's playground key, and its stream back.

    The browser never sees the key. When the tab closes, Django cancels the iteration, which closes the call to the
    gateway, which frees the request's KV blocks.
    """
    if is_too_large(request):
        text = f"The playground takes up to {MAX_BODY_BYTES // 1024} KiB. Call the gateway with a key for more."
        return HttpResponse(text, status=413, content_type="text/plain; charset=utf-8")
    events = _relay(request.body, playground_key(actor=actor))
    return StreamingHttpResponse(events, content_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def is_too_large(request: HttpRequest) -> bool:
    """Say whether the body is over the playground's size; a chunked one declares nothing."""
    declared_bytes = int(request.headers.get("Content-Length") or 0)
    return declared_bytes > MAX_BODY_BYTES or len(request.body) > MAX_BODY_BYTES


async def _relay(body: bytes, key: str) -> AsyncIterator[bytes]:
    """Yield an event that names the request and who answers, then the gateway's events; a refusal is an event too."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        async with (
            httpx.AsyncClient(base_url=settings.PAGODA_GATEWAY_URL, timeout=_TIMEOUT, trust_env=False) as client,
            _called(client, body, headers) as response,
        ):
            is_refused = response.status_code in _REFUSED
            yield _event("request", {**named(response.headers), "is_refused": is_refused})
            if response.status_code != httpx.codes.OK:
                yield b"data: " + await response.aread() + b"\n\n"
                return
            async for chunk in response.aiter_raw():
                yield chunk
    except httpx.HTTPError:
        yield _event("error", {"error": {"message": _UNREACHABLE, "code": "unreachable"}})


@asynccontextmanager
async def _called(client: httpx.AsyncClient, body: bytes, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
    until_s = time.monotonic() + _NEWS_S
    while True:
        async with client.stream("POST", "/v1/chat/completions", content=body, headers=headers) as response:
            if response.status_code != httpx.codes.UNAUTHORIZED or time.monotonic() > until_s:
                yield response
                return
        await asyncio.sleep(_LOOK_EVERY_S)


def named(headers: httpx.Headers) -> dict[str, str]:
    """Return the ids of the request, and of the version and replica that answer it, where there are any."""
    ids = {"request_id": PUBLIC_REQUEST_ID, "version_id": _SERVED_VERSION, "replica_id": _SERVED_REPLICA}
    return {name: headers.get(header, "") for name, header in ids.items()}


def _event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
