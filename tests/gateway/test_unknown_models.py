"""A model of another tenant's and one that nobody has: the same bytes, and the same way through the gateway."""

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import httpx
import pytest
from gateway_harness import BODY, NO_REDIS, Harness, gateway
from gateway_world import PEPPERS, World

from dataplane.contracts import headers, keys
from dataplane.contracts.errors import ApiError
from dataplane.gateway import arm_choice, auth
from dataplane.gateway.door import Headers
from dataplane.gateway.snapshot import Snapshot

PAIRS = [("secret", "nobody"), ("secret@1", "nobody@1"), ("evil/secret", "evil/nobody"), ("evil/secret", "live/secret")]
"""Names of evil's as acme could guess them, each beside one that names nothing."""
ASKED: dict[str, Callable[[Harness, str], Any]] = {
    "retrieve": lambda g, name: g.client.get(f"/v1/models/{name}", headers=g.headers()),
    "chat": lambda g, name: g.post(BODY | {"model": name}),
    "stream": lambda g, name: g.post(BODY | {"model": name, "stream": True}),
    "arm": lambda g, name: g.post(BODY | {"model": name}, headers={headers.USE_ARM: "candidate"}),
    **{
        path: lambda g, name, path=path: g.client.post(
            path, json={"model": name, "prompt": "x", "tokens": [7]}, headers=g.headers()
        )
        for path in ("/v1/completions", "/tokenize", "/detokenize")
    },
}


def heard(response: httpx.Response, name: str) -> tuple[int, dict[str, str], str]:
    """Return an answer without its request's own id and the name that was asked for."""
    own = {"x-request-id", "date"}
    told = {key: value for key, value in response.headers.items() if key not in own}
    text = json.dumps(response.json()).replace(response.headers["x-request-id"], "REQUEST").replace(name, "NAME")
    return response.status_code, told, text


@pytest.mark.anyio
@pytest.mark.parametrize(("theirs", "nobodys"), PAIRS)
async def test_every_endpoint_answers_both_alike(world: World, home, theirs: str, nobodys: str) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        for ask in ASKED.values():
            first, second = [heard(await ask(g, name), name) for name in (theirs, nobodys)]
            assert first == second
            assert first[0] == 404
        assert g.outside.demands == []
        assert g.replicas[0].calls == []


def way(call: Callable[[], object]) -> list[tuple[str, int]]:
    """Return the lines of the product that run until ``call`` is refused, in their order."""
    lines: list[tuple[str, int]] = []

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if "/dataplane/" not in frame.f_code.co_filename:
            return None
        lines.append((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except ApiError:
        pass
    else:
        pytest.fail("it was not refused")
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("asked", [{}, {headers.USE_ARM: "stable"}, {headers.SESSION: "s"}])
@pytest.mark.parametrize(("theirs", "nobodys"), PAIRS)
def test_both_take_the_same_lines(asked: dict[str, str], theirs: str, nobodys: str) -> None:
    world = World()
    catalog = world.catalog()
    snapshot, caller = Snapshot(catalog), auth.authenticate(world.acme_key.text, catalog, PEPPERS, 0)
    sent = Headers({"headers": [(name.encode(), value.encode()) for name, value in asked.items()]})
    snapshot.models(caller)  # worked out once for a tenant, whatever it asks for first
    first, second = (way(lambda name=name: arm_choice.of(sent, snapshot, caller, name)) for name in (theirs, nobodys))
    assert first == second
    assert first


def test_a_key_that_nobody_has_costs_the_digests_of_one_whose_secret_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    catalog, made, digest = world.catalog(), [], keys.digest
    monkeypatch.setattr(keys, "digest", lambda text, pepper: made.append(pepper) or digest(text, pepper))
    refusals = set()
    for text in (keys.mint("live", world.acme_key.lookup).text, keys.mint("live").text):
        with pytest.raises(ApiError) as refusal:
            auth.authenticate(text, catalog, PEPPERS, 0)
        refusals.add((refusal.value.code, refusal.value.message))
    assert len(refusals) == 1
    assert made == [*PEPPERS.values()] * 2
