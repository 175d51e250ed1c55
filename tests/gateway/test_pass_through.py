import asyncio
import json
from contextlib import suppress

import msgspec
import pytest
from fake_replica import DONE, Call, answer, pieces, refuses, token_event
from gateway_harness import BODY, error_of, events, gateway
from gateway_world import CONTEXT_TOKENS, World

from dataplane.contracts import headers, ids
from dataplane.contracts.catalog import Share
from dataplane.contracts.usage import Outcome, RecordKind, Source

pytestmark = pytest.mark.anyio


async def test_a_whole_answer_and_its_body_pass_unchanged(world: World, home, clean_redis) -> None:
    async with gateway(world, home, clean_redis) as g:
        body = b'{ "model":"chat", "messages" : [{"role":"user","content":"h\\u00e9"}],"max_tokens":16 , "user":"u"}'
        response = await g.post(body)
        assert response.status_code == 200
        assert response.content == answer(3)
        assert g.replicas[0].calls[0].body == body
        assert g.replicas[0].calls[0].path == "/v1/chat/completions"


async def test_a_stream_passes_event_by_event_without_its_meter_lines(world: World, home, clean_redis) -> None:
    async with gateway(world, home, clean_redis) as g:
        response, data = await g.stream()
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert data[-1] == "[DONE]"
        assert [json.loads(d)["choices"][0]["finish_reason"] for d in data[:-1]] == [None, None, "stop"]


async def test_events_cut_anywhere_by_the_network_come_out_whole(world: World, home, clean_redis) -> None:
    whole = token_event(1, "é\U0001f600") + token_event(2, finish="stop") + DONE
    async with gateway(world, home, clean_redis) as g:
        g.replicas[0].script = pieces(*(whole[i : i + 1] for i in range(len(whole))))
        _, data = await g.stream()
        assert json.loads(data[0])["choices"][0]["delta"]["content"] == "é\U0001f600"
        assert data[-1] == "[DONE]"
        assert len(data) == 3


async def test_what_the_caller_claims_in_internal_headers_never_reaches_a_replica(
    world: World, home, clean_redis
) -> None:
    async with gateway(world, home, clean_redis) as g:
        forged = dict.fromkeys(headers.INTERNAL - {headers.QUEUE_WAIT_S}, "forged")
        forged |= {"x-request-id": "forged", headers.CLIENT_LABEL: "my-label", "x-other": "forged"}
        response = await g.post(headers=forged)
        seen = g.replicas[0].calls[0].headers
        assert "forged" not in seen.values()
        assert seen[headers.TENANT] == "ten_acme"
        assert seen[headers.KEY] == world.keys[world.acme_key.lookup].id
        assert seen[headers.METER] == "1"
        assert seen[headers.REQUEST_ID] == response.headers["x-request-id"]
        assert ids.is_id(seen[headers.REQUEST_ID], ids.Kind.REQUEST)
        assert "authorization" not in seen


@pytest.mark.parametrize(("asked", "told_s", "forced"), [({}, 240, False), ({headers.QUEUE_WAIT_S: "1.5"}, 1.5, True)])
async def test_a_caller_may_bound_its_wait_in_the_queue_and_then_no_verdict_counts_its_timeout(
    asked: dict[str, str], told_s: float, forced: bool, world: World, home, clean_redis
) -> None:
    async with gateway(world, home, clean_redis) as g:
        g.replicas[0].script = refuses(504, "queue_timeout")
        assert (await g.post(headers=asked)).status_code == 504
        assert float(g.replicas[0].calls[0].headers[headers.QUEUE_WAIT_S]) == told_s
        [record] = await g.records(1)
        assert (record.outcome, record.error_code, record.forced) == (Outcome.FAILED, "queue_timeout", forced)


async def test_a_replica_is_told_the_grants_pace_and_never_the_callers(world: World, home, clean_redis) -> None:
    paced = {"ten_acme": Share(pace_ms=40)}
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], grants=paced)
    async with gateway(world, home, clean_redis) as g:
        await g.post(headers={headers.PACE_MS: "1", headers.PROBE: "1"})
        seen = g.replicas[0].calls[0].headers
        assert seen[headers.PACE_MS] == "40"
        assert headers.PROBE not in seen


async def test_a_paced_answer_that_is_not_streamed_may_be_silent_until_its_last_tick(
    world: World, home, clean_redis
) -> None:
    async def comes_late(call: Call) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await call.gone.wait()
        await call.whole(200, answer(3))

    paced = {"ten_acme": Share(pace_ms=1000)}
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], grants=paced)
    async with gateway(world, home, clean_redis, silent_replica_s=0.05) as g:
        g.replicas[0].script = comes_late
        assert (await g.post()).status_code == 200


async def test_a_stream_is_billed_by_what_was_delivered(world: World, home, clean_redis) -> None:
    async with gateway(world, home, clean_redis) as g:
        response, _ = await g.stream()
        [record] = await g.records(1)
        assert record.request_id == response.headers["x-request-id"]
        assert (record.source, record.kind, record.sequence) == (Source.GATEWAY, RecordKind.CLOSED, 0)
        assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (7, 2, 3)
        assert (record.outcome, record.error_code, record.last_attempt) == (Outcome.STOP, "", True)
        assert (record.tenant_id, record.replica_id, record.stream) == ("ten_acme", "rep_0", True)
        assert record.key_id == world.keys[world.acme_key.lookup].id
        assert record.ttft_ms is not None


async def test_a_whole_answer_is_billed_by_its_usage(world: World, home, clean_redis) -> None:
    async with gateway(world, home, clean_redis) as g:
        await g.post()
        [record] = await g.records(1)
        assert (record.prompt_tokens, record.completion_tokens, record.outcome) == (7, 3, Outcome.STOP)


async def test_an_error_of_the_replica_passes_with_its_status(world: World, home, clean_redis) -> None:
    async with gateway(world, home, clean_redis) as g:
        g.replicas[0].script = refuses(400, "context_length_exceeded")
        response = await g.post()
        assert response.status_code == 400
        assert error_of(response.content)["code"] == "context_length_exceeded"
        [record] = await g.records(1)
        assert (record.outcome, record.error_code) == (Outcome.REFUSED, "context_length_exceeded")


async def test_a_stream_that_fails_before_its_first_token_is_a_plain_status(world: World, home, clean_redis) -> None:
    event = b'data: {"error":{"message":"too long","type":"t","code":"queue_timeout"}}\n\n'
    async with gateway(world, home, clean_redis) as g:
        g.replicas[0].script = pieces(event)
        async with g.streaming() as response:
            assert response.status_code == 504
            assert error_of(await response.aread())["code"] == "queue_timeout"


async def test_an_error_event_passes_and_ends_the_stream(world: World, home, clean_redis) -> None:
    event = b'data: {"error":{"message":"NaN","type":"server_error","code":"request_failed"}}\n\n'
    async with gateway(world, home, clean_redis) as g:
        g.replicas[0].script = pieces(token_event(1), event, token_event(2), DONE)
        _, data = await g.stream()
        assert len(data) == 2
        assert error_of(data[-1])["code"] == "request_failed"
        [record] = await g.records(1)
        assert (record.outcome, record.error_code, record.completion_tokens) == (Outcome.FAILED, "request_failed", 1)


async def test_a_refused_body_names_its_request_and_is_neither_forwarded_nor_billed(
    world: World, home, clean_redis
) -> None:
    cases = [
        (b'{"model":"chat"', 400, "invalid_json"),
        (b'{"model":7}', 400, "invalid_parameter"),
        (b'{"model":"nothing"}', 404, "model_not_found"),
        (b" " * 5_000_000, 413, "body_too_large"),
    ]
    async with gateway(world, home, clean_redis) as g:
        for body, status, code in cases:
            response = await g.post(body)
            assert (response.status_code, error_of(response.content)["code"]) == (status, code)
            assert error_of(response.content)["request_id"] == response.headers["x-request-id"]
        accepted = await g.post()
        assert [record.request_id for record in await g.records(1)] == [accepted.headers["x-request-id"]]
        assert len(g.replicas[0].calls) == 1


async def test_a_body_without_a_declared_length_is_bounded_while_it_comes(world: World, home, clean_redis) -> None:
    async def endless():
        for _ in range(100):
            yield b" " * 100_000

    async with gateway(world, home, clean_redis) as g:
        response = await g.client.post("/v1/completions", content=endless(), headers=g.headers())
        assert response.status_code == 413


async def test_everything_else_is_not_found_in_the_same_envelope(world: World, home, clean_redis) -> None:
    async with gateway(world, home, clean_redis) as g:
        for path in ("/", "/v1", "/v1/embeddings", "/internal/catalog", "/docs", "/v1/chat/completions/"):
            response = await g.client.get(path, headers=g.headers())
            assert response.status_code == 404, path
            assert error_of(response.content)["code"] == "not_found"
            assert "POST /v1/chat/completions, " in error_of(response.content)["message"]
        response = await g.client.get("/v1/chat/completions", headers=g.headers())
        assert (response.status_code, error_of(response.content)["code"]) == (405, "method_not_allowed")


async def test_the_gateway_says_whether_it_is_well_and_shows_metrics_to_its_own_only(
    world: World, home, clean_redis
) -> None:
    async with gateway(world, home, clean_redis) as g:
        assert (await g.client.get("/health")).json()["status"] == "ok"
        await g.stream()
        await g.records(1)
        assert (await g.client.get("/metrics", headers=g.headers())).status_code == 401
        secret = {"authorization": f"Bearer {g.gateway.settings.internal_secret}"}
        text = (await g.client.get("/metrics", headers=secret)).text
        assert 'pagoda_gateway_requests_total{code="ok",tenant="ten_acme"} 1.0' in text
        assert 'pagoda_gateway_generation_tokens_total{tenant="ten_acme"} 3.0' in text
        assert "pagoda_gateway_replicas_ready 1.0" in text


async def test_a_prompt_over_the_context_is_left_to_the_replica_which_names_both_numbers(
    world: World, home, clean_redis
) -> None:
    async with gateway(world, home, clean_redis) as g:
        body = BODY | {"messages": [{"role": "user", "content": "word " * CONTEXT_TOKENS * 4}]}
        del body["max_tokens"]
        assert (await g.post(body)).status_code == 200


def test_the_harness_reads_events_strictly() -> None:
    assert events("data: a\n\ndata: b\n\n") == ["a", "b"]
    with pytest.raises(AssertionError):
        events(": t=1\ndata: a\n\n")
