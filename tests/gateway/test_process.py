"""The gateway as the process that ``python -m dataplane.gateway`` is: start, log, drain, crash."""

import asyncio
import json
import os
import signal
import sys

import httpx
import msgspec
import pytest
from fake_replica import DONE, Call, token_event
from gateway_harness import BODY, NO_REDIS, Harness, error_of, events
from gateway_process import environment, process
from gateway_world import World

from dataplane.contracts.catalog import CANDIDATE, STABLE, Arm
from dataplane.http_server.server import open_port

pytestmark = pytest.mark.anyio


class Slow:
    """A replica that streams one token, then the rest once it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        await call.head()
        await call.chunk(token_event(1))
        go_on, gone = asyncio.ensure_future(self.go_on.wait()), asyncio.ensure_future(call.gone.wait())
        await asyncio.wait({go_on, gone}, return_when=asyncio.FIRST_COMPLETED)
        go_on.cancel()
        gone.cancel()
        await call.chunk(token_event(2, finish="stop") + DONE)
        await call.end()


async def test_sigterm_lets_streams_finish_ships_their_usage_and_ends_cleanly(world: World, home) -> None:
    async with Harness(world, home, NO_REDIS) as g:
        slow = Slow()
        await g.add_replica(slow)
        async with process(g, home / "log") as (child, client):
            async with g.streaming() as response:
                body = response.aiter_bytes()
                text = await anext(body)
                child.send_signal(signal.SIGTERM)
                async with asyncio.timeout(90):
                    while await _listening(client):
                        await asyncio.sleep(0.02)
                slow.go_on.set()
                async for piece in body:
                    text += piece
            assert events(text.decode())[-1] == "[DONE]"
            async with asyncio.timeout(90):
                assert await child.wait() == 0
        assert [record.completion_tokens for record in await g.records(1)] == [2]


async def _listening(client: httpx.AsyncClient) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def test_a_killed_gateway_takes_its_requests_off_the_replicas_and_the_next_one_serves(world: World, home) -> None:
    async with Harness(world, home, NO_REDIS) as g:
        slow = Slow()
        replica = await g.add_replica(slow)
        async with process(g, home / "log") as (child, _):
            async with g.streaming() as response:
                body = response.aiter_bytes()
                await anext(body)
                child.kill()
                with pytest.raises(httpx.TransportError):
                    await anext(body)
            async with asyncio.timeout(90):
                await replica.calls[0].gone.wait()
        slow.go_on.set()
        async with process(g, home / "log2"):
            assert (await g.post(BODY | {"stream": True})).status_code == 200


async def test_the_log_is_json_and_holds_neither_prompts_nor_keys(world: World, home) -> None:
    arms = (Arm("ver_1", 100), Arm("ver_2", 0, CANDIDATE))
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], arms=arms)
    async with Harness(world, home, NO_REDIS) as g:
        await g.add_replica()
        async with process(g, home / "log") as (child, _):
            prompt = "a-very-secret-prompt"
            body = BODY | {"messages": [{"role": "user", "content": prompt}]}
            response = await g.post(body, headers={"x-client-request-id": "my\tlabel" + "x" * 500})
            await g.post(json.dumps(body)[:-1].encode())
            await g.post(body, key=world.acme_key.text + "x")
            child.terminate()
            await child.wait()
        text = (home / "log").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        [line] = [line for line in lines if line.get("request_id") == response.headers["x-request-id"]]
        assert (line["tenant_id"], line["code"], line["status"]) == ("ten_acme", "ok", 200)
        assert line["replica_id"] == "rep_0"
        assert line["label"] == "mylabel" + "x" * 120
        assert line["delivered_tokens"] == 3
        assert (line["version_id"], line["arm"], line["forced"]) == ("ver_1", STABLE, False)
        [applied] = [line for line in lines if line["event"] == "catalog_applied"]
        weights = {STABLE: ["ver_1", 100], CANDIDATE: ["ver_2", 0]}
        assert (applied["number"], applied["rollouts"]) == (g.outside.catalog.number, {"dep_chat": weights})
        assert prompt not in text
        assert world.acme_key.text.split("_")[3] not in text


async def test_usage_that_cannot_be_shipped_at_the_end_waits_on_the_disk_for_the_next_process(
    world: World, home
) -> None:
    async with Harness(world, home, NO_REDIS) as g:
        await g.add_replica()
        async with process(g, home / "log") as (child, _):
            child.terminate()
            assert await child.wait() == 0
        async with process(g, home / "log2", control_url="http://127.0.0.1:9") as (child, _):
            response = await g.post()
            assert response.status_code == 200
            child.terminate()
            assert await child.wait() == 0
        assert g.outside.records == []
        async with process(g, home / "log3"):
            assert [r.request_id for r in await g.records(1)] == [response.headers["x-request-id"]]


async def test_a_start_without_settings_is_refused_with_what_is_missing() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dataplane.gateway", env={"PATH": os.environ["PATH"]}, stderr=asyncio.subprocess.PIPE
    )
    _, error = await child.communicate()
    assert child.returncode == 2
    assert b"PAGODA_KEY_PEPPERS is not set" in error
    assert b"Traceback" not in error


async def test_what_still_runs_when_the_drain_ends_gets_an_error_event(world: World, home) -> None:
    async with Harness(world, home, NO_REDIS, drain_s=0.3) as g:
        await g.add_replica(Slow())
        await g.start()
        async with g.streaming() as response:
            body = response.aiter_bytes()
            text = await anext(body)
            g.gateway.drain()
            async for piece in body:
                text += piece
        assert error_of(events(text.decode())[-1])["code"] == "shutting_down"
        assert (await g.client.get("/health")).json() == {"status": "draining"}


async def test_a_second_call_to_drain_ends_what_still_runs_at_once(world: World, home) -> None:
    async with Harness(world, home, NO_REDIS) as g:
        await g.add_replica(Slow())
        await g.start()
        async with g.streaming() as response:
            body = response.aiter_bytes()
            text = await anext(body)
            g.gateway.drain()
            g.gateway.drain()
            async for piece in body:
                text += piece
        assert error_of(events(text.decode())[-1])["code"] == "shutting_down"


async def test_a_port_that_is_taken_is_named_without_a_traceback(world: World, home) -> None:
    async with Harness(world, home, NO_REDIS) as g:
        with open_port("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dataplane.gateway", env=environment(g, port), stderr=asyncio.subprocess.PIPE
            )
            _, error = await child.communicate()
        assert (child.returncode, str(port) in error.decode(), b"Traceback" in error) == (2, True, False)
