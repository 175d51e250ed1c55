"""``/tokenize`` and ``/detokenize``: answered by a replica for whoever may call the model, and billed to nobody."""

import json

import pytest
from fake_replica import Call, dies
from gateway_harness import NO_REDIS, Harness, error_of, gateway
from gateway_world import World

from dataplane.contracts import headers

pytestmark = pytest.mark.anyio
BODY = {"model": "chat", "prompt": "hello"}
ANSWER = b'{"count":1,"max_model_len":100,"tokens":[7]}'


async def answers(call: Call) -> None:
    await call.whole(200, ANSWER)


async def ask(g: Harness, path: str = "/tokenize", key: str | None = None, **fields: object) -> tuple[int, bytes]:
    response = await g.client.post(path, content=json.dumps(BODY | fields).encode(), headers=g.headers(key))
    assert response.headers["x-request-id"].startswith("req_")
    return response.status_code, response.content


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_body_and_answer_pass_unchanged_and_leave_no_record(world: World, home, path: str) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        g.replicas[0].script = answers
        assert await ask(g, path) == (200, ANSWER)
        (call,) = g.replicas[0].calls
        assert (call.path, json.loads(call.body)) == (path, BODY)
        assert call.headers[headers.TENANT] == "ten_acme"
        assert headers.METER not in call.headers
        await g.post()
        assert [record.endpoint for record in await g.records(1)] == ["/v1/chat/completions"]


async def test_only_who_may_call_the_model_may_have_it_tokenize(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        g.replicas[0].script = answers
        status, body = await ask(g, key="junk")
        assert (status, error_of(body)["code"]) == (401, "invalid_api_key")
        status, body = await ask(g, key=world.evil_key.text)
        assert (status, error_of(body)["code"]) == (404, "model_not_found")
        assert (await g.client.post("/tokenize", json=BODY)).status_code == 401
        assert g.replicas[0].calls == []


async def test_a_call_counts_against_the_requests_of_its_key_and_no_tokens(world: World, home) -> None:
    world.limit("acme", requests_per_minute=2, tokens_per_minute=1)
    async with gateway(world, home, NO_REDIS) as g:
        g.replicas[0].script = answers
        assert [(await ask(g))[0] for _ in range(3)] == [200, 200, 429]


async def test_a_body_is_bounded_and_what_a_replica_refuses_passes(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, max_body_bytes=10_000) as g:
        status, body = await ask(g, prompt="x" * 10_000)
        assert (status, error_of(body)["code"]) == (413, "body_too_large")
        refused = b'{"error":{"message":"no","type":"t","code":"invalid_parameter","param":"prompt"}}'

        async def refuses(call: Call) -> None:
            await call.whole(400, refused)

        g.replicas[0].script = refuses
        assert await ask(g) == (400, refused)


async def test_without_a_ready_replica_nobody_waits_and_none_is_woken(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        response = await g.client.post("/tokenize", json=BODY, headers=g.headers())
        assert (response.status_code, error_of(response.content)["code"]) == (503, "model_cold")
        assert "retry-after" in response.headers
        assert g.gateway.room.waiting_count == 0


async def test_a_replica_that_dies_is_an_error_with_a_name_and_is_avoided(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=2) as g:
        for replica in g.replicas:
            replica.script = dies
        status, body = await ask(g)
        assert (status, error_of(body)["code"]) == (502, "replica_lost")
        for replica in g.replicas:
            replica.script = answers
        lost = next(replica for replica in g.replicas if replica.calls)
        assert [(await ask(g))[0] for _ in range(4)] == [200] * 4
        assert len(lost.calls) == 1
