"""The playground: a prompt, and the answer as it is made. It calls the gateway as any application does."""

import json
from collections.abc import AsyncIterator

import httpx
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from console.access import member_page
from controlplane.deployments import selectors
from dataplane.contracts.headers import PUBLIC_REQUEST_ID
from tenants.actor import Actor
from tenants.roles import Permission
from tenants.services.keys import playground_key

_TIMEOUT = httpx.Timeout(None, connect=5.0)
_UNREACHABLE = "The gateway cannot be reached. Try again in a moment."


@require_GET
@member_page(Permission.PLAYGROUND_USE)
def playground(request: HttpRequest, actor: Actor) -> HttpResponse:
    """Show the form and the code that does the same."""
    listed = selectors.list_deployments(actor=actor) if actor.may(Permission.DEPLOYMENTS_READ) else []
    context = {
        "deployments": [item for item in listed if item.deployment.state == "active"],
        "chosen": request.GET.get("model", ""),
        "gateway_url": f"{settings.PAGODA_GATEWAY_URL}/v1",
    }
    return render(request, "console/pages/playground.html", context)


@require_POST
@member_page(Permission.PLAYGROUND_USE)
def stream(request: HttpRequest, actor: Actor) -> StreamingHttpResponse:
    """Pass a chat call on to the gateway with the member's playground key, and its stream back.

    The browser never sees the key. When the tab closes, Django cancels the iteration, which closes the call to the
    gateway, which frees the request's KV blocks.
    """
    events = _relay(request.body, playground_key(actor=actor))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingHttpResponse(events, content_type="text/event-stream", headers=headers)


async def _relay(body: bytes, key: str) -> AsyncIterator[bytes]:
    """Yield an event that names the request, then the gateway's events; a refusal is an error event too."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        async with (
            httpx.AsyncClient(base_url=settings.PAGODA_GATEWAY_URL, timeout=_TIMEOUT) as client,
            client.stream("POST", "/v1/chat/completions", content=body, headers=headers) as response,
        ):
            named = {"request_id": response.headers.get(PUBLIC_REQUEST_ID, "")}
            yield b"event: request\ndata: " + json.dumps(named).encode() + b"\n\n"
            if response.status_code != httpx.codes.OK:
                yield b"data: " + await response.aread() + b"\n\n"
                return
            async for chunk in response.aiter_raw():
                yield chunk
    except httpx.HTTPError:
        yield b"data: " + json.dumps({"error": {"message": _UNREACHABLE, "code": "unreachable"}}).encode() + b"\n\n"
