"""Who may call: over HTTP, along both paths of the catalog, and for streams that already run."""

import asyncio
import json

import msgspec
import pytest
import redis
from fake_replica import Call, token_event
from gateway_harness import BODY, NO_REDIS, Harness, error_of, events, gateway
from gateway_world import World, deployment, report

from dataplane.contracts import catalog as contract
from dataplane.contracts import keys
from dataplane.contracts.catalog import Arm, Hold
from dataplane.contracts.usage import Outcome
from dataplane.gateway.door import wall_ms

pytestmark = pytest.mark.anyio


async def streams_until_gone(call: Call) -> None:
    await call.head()
    await call.chunk(token_event(1))
    await call.gone.wait()


async def test_a_stranger_is_told_how_to_come_in(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        for path in ("/v1/models", "/v1/models/chat"):
            response = await g.client.get(path)
            assert (response.status_code, error_of(response.content)["code"]) == (401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
        for key in ("junk", keys.mint("live").text):
            response = await g.post(key=key)
            assert (response.status_code, error_of(response.content)["code"]) == (401, "invalid_api_key")
        assert g.replicas[0].calls == []


async def test_models_are_those_the_key_may_call_and_no_others_exist(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        listed = (await g.client.get("/v1/models", headers=g.headers())).json()
        assert [model["id"] for model in listed["data"] if "@" not in model["id"]] == ["chat", "shared"]
        listed = (await g.client.get("/v1/models", headers=g.headers(world.evil_key.text))).json()
        names = [model["id"] for model in listed["data"]]
        assert names == ["acme/shared", "acme/shared@1", "acme/shared@stable", "secret", "secret@1", "secret@stable"]
        for name in ("acme/shared", "acme/shared@1"):
            response = await g.client.get(f"/v1/models/{name}", headers=g.headers(world.evil_key.text))
            assert response.json()["id"] == name
        answers = []
        for name in ("secret", "no-such"):
            by_get = await g.client.get(f"/v1/models/{name}", headers=g.headers())
            by_post = await g.post(BODY | {"model": name})
            answers.append(
                [(r.status_code, error_of(r.content)["message"].replace(name, "NAME")) for r in (by_get, by_post)]
            )
        assert answers[0] == answers[1]
        assert answers[0][0][0] == 404


async def test_a_guest_of_a_shared_model_is_served_under_its_own_name(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        replica = await g.add_replica(deployment_id="dep_shared")
        await g.settled()
        assert (await g.post(BODY | {"model": "acme/shared"}, key=world.evil_key.text)).status_code == 200
        assert replica.calls[0].headers["x-pagoda-tenant"] == "ten_evil"


async def test_a_version_called_by_name_is_the_one_that_serves_whatever_the_weights_say(world: World, home) -> None:
    arms = (Arm("ver_1", 100), Arm("ver_2", 0, "candidate", Hold.READY))
    world.deployments["chat"] = deployment("dep_chat", "ten_acme", "chat", ("ten_acme",), arms=arms)
    async with gateway(world, home, NO_REDIS) as g:
        await g.add_replica(version_id="ver_2")
        await g.settled()
        served = {}
        for name in ("chat", "chat@1", "chat@stable", "chat@2"):
            served[name] = (await g.post(BODY | {"model": name})).headers["x-served-version"]
        assert served == {"chat": "ver_1", "chat@1": "ver_1", "chat@stable": "ver_1", "chat@2": "ver_2"}
        assert [call.headers["x-pagoda-arm"] for call in g.replicas[1].calls] == ["candidate"]
        response = await g.post(BODY | {"model": "chat@3"})
        assert (response.status_code, error_of(response.content)["code"]) == (404, "model_not_found")


async def _cut(g: Harness, change) -> dict:
    """Start a stream, apply ``change`` to the world while it runs, and return the error that ends it."""
    g.replicas[0].script = streams_until_gone
    async with g.streaming() as response:
        body = response.aiter_bytes()
        text = (await anext(body)).decode()
        change()
        await g.change_catalog()
        async with asyncio.timeout(90):
            async for piece in body:
                text += piece.decode()
            await g.replicas[0].calls[-1].gone.wait()
    return error_of(events(text)[-1])


def _take_grant(world: World) -> None:
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], grants={})


def _narrow_key(world: World) -> None:
    entry = world.keys[world.acme_key.lookup]
    world.keys[world.acme_key.lookup] = msgspec.structs.replace(entry, deployment_ids=("dep_shared",))


CHANGES = {
    "key_revoked": lambda world: world.keys.pop(world.acme_key.lookup),
    "tenant_suspended": lambda world: world.suspend("acme"),
    "model_not_found": _take_grant,
    "model_not_found by key": _narrow_key,
}


@pytest.mark.parametrize("way", CHANGES)
async def test_what_is_withdrawn_ends_streams_that_run_and_refuses_new_ones(world: World, home, way: str) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        code = way.split(maxsplit=1)[0]
        error = await _cut(g, lambda: CHANGES[way](world))
        assert error["code"] == code
        [record] = await g.records(1)
        assert (record.outcome, record.error_code, record.completion_tokens) == (
            Outcome.ABORTED,
            way.split(maxsplit=1)[0],
            1,
        )
        assert (await g.post()).status_code in (401, 403, 404)


async def test_a_key_that_expires_ends_its_stream_without_a_new_catalog(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        g.replicas[0].script = streams_until_gone
        async with g.streaming() as response:
            pieces = response.aiter_text()
            text = await anext(pieces)
            entry = world.keys[world.acme_key.lookup]
            world.keys[world.acme_key.lookup] = msgspec.structs.replace(entry, expires_at_ms=wall_ms() + 500)
            await g.change_catalog()
            text += "".join([piece async for piece in pieces])
        assert error_of(events(text)[-1])["code"] == "key_revoked"


async def test_other_callers_streams_go_on_when_one_is_cut(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        replica = await g.add_replica(streams_until_gone, deployment_id="dep_shared")
        await g.settled()
        async with g.streaming(model="shared") as acmes, g.streaming(world.evil_key.text, model="acme/shared") as evils:
            await anext(evils.aiter_bytes())
            first = acmes.aiter_bytes()
            await anext(first)
            world.suspend("evil")
            await g.change_catalog()
            await asyncio.wait({asyncio.ensure_future(call.gone.wait()) for call in replica.calls},
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            gone = {call.headers["x-pagoda-tenant"]: call.gone.is_set() for call in replica.calls}
            assert gone == {"ten_acme": False, "ten_evil": True}


async def test_a_revocation_needs_the_control_plane_alone(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        assert (await g.post()).status_code == 200
        del world.keys[world.acme_key.lookup]
        g.outside.catalog = world.catalog()
        async with asyncio.timeout(90):
            while (await g.post()).status_code != 401:
                pass


async def test_a_revocation_needs_redis_alone(world: World, home, clean_redis) -> None:
    async with gateway(world, home, clean_redis) as g:
        g.outside.away = True
        with redis.Redis.from_url(clean_redis) as client:
            async with asyncio.timeout(90):
                while not client.pubsub_numsub(contract.REDIS_CHANNEL)[0][1]:
                    await asyncio.sleep(0.01)
            old = g.outside.catalog
            del world.keys[world.acme_key.lookup]
            new = world.catalog()
            client.set(contract.REDIS_KEY, contract.encode(new))
            client.publish(contract.REDIS_CHANNEL, contract.encode(contract.diff(old, new)))
            async with asyncio.timeout(90):
                while (await g.post()).status_code != 401:
                    pass
            client.delete(contract.REDIS_KEY)


async def test_an_older_catalog_never_brings_a_revoked_key_back(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        older = g.outside.catalog
        del world.keys[world.acme_key.lookup]
        await g.change_catalog()
        g.gateway.follower._take(older)
        assert (await g.post()).status_code == 401


async def test_a_gateway_starts_and_serves_on_its_last_good_catalog_with_everyone_away(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        assert (await g.post()).status_code == 200
    async with Harness(world, home, NO_REDIS) as g:
        await g.add_replica()
        g.outside.away = True
        starting = asyncio.ensure_future(g.start())
        await asyncio.sleep(0)
        async with asyncio.timeout(90):
            while not hasattr(g, "client"):
                await asyncio.sleep(0.01)
            g.gateway.replicas.take(g.outside.table)
            await starting
        assert (await g.post()).status_code == 200
        assert (await g.client.get("/health")).json()["status"] == "ok"


async def test_before_any_catalog_nobody_is_called_a_stranger(world: World, home) -> None:
    async with Harness(world, home, NO_REDIS) as g:
        g.outside.away = True
        await g.start()
        response = await g.post()
        assert (response.status_code, error_of(response.content)["code"]) == (503, "overloaded")
        assert "retry-after" in response.headers
        assert (await g.client.get("/health")).status_code == 503
        assert (await g.post(key="junk")).status_code == 503


async def test_a_session_decides_the_arm_and_the_version_is_told_to_replica_and_caller(world: World, home) -> None:
    arms = (contract.Arm("ver_1", 50), contract.Arm("ver_2", 50, "candidate"))
    world.deployments["chat"] = deployment("dep_chat", "ten_acme", "chat", ("ten_acme",), arms=arms)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        for version_id in ("ver_1", "ver_2"):
            await g.add_replica(version_id=version_id)
        await g.settled()
        seen = {}
        for session in ("a", "b", "c", "d", "e", "f"):
            answers = {
                (await g.post(headers={"x-pagoda-session": session})).headers["x-served-version"] for _ in range(3)
            }
            assert len(answers) == 1
            seen[session] = answers.pop()
        assert set(seen.values()) == {"ver_1", "ver_2"}
        for replica, version_id in zip(g.replicas, ("ver_1", "ver_2"), strict=True):
            assert {call.headers["x-pagoda-version"] for call in replica.calls} == {version_id}


async def test_the_table_stays_in_force_while_the_fleet_is_away(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        g.outside.away = True
        await g.outside.close()
        async with asyncio.timeout(90):
            while not g.gateway.replicas.away:
                await asyncio.sleep(0.01)
        assert (await g.post()).status_code == 200
        assert "fleet" in (await g.client.get("/health")).json()["away"]


async def test_a_fleet_that_counts_from_the_start_again_is_believed(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        second = await g.add_replica()
        await g.settled()
        g.outside.away = True
        await g.outside.close()
        async with asyncio.timeout(90):
            while not g.gateway.replicas.away:
                await asyncio.sleep(0.01)
        only_second = (report("rep_1", second.socket),)
        g.outside.table = msgspec.structs.replace(g.outside.table, number=1, replicas=only_second)
        g.outside.closing = g.outside.away = False
        await g.settled()
        await g.post()
        assert len(second.calls) == 1


@pytest.mark.parametrize("name", ["authorization", "content-encoding"])
async def test_a_header_that_two_readers_could_read_differently_is_refused(world: World, home, name: str) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        values = {"authorization": g.headers()["authorization"], "content-encoding": "identity"}
        others = [pair for pair in (g.headers() | values).items() if pair[0] != name]
        for value in (values[name], "gzip"):
            twice = [*others, (name, value), (name, values[name])]
            answer = await g.client.post("/v1/chat/completions", content=json.dumps(BODY), headers=twice)
            assert (answer.status_code, error_of(answer.content)["param"]) == (400, name)
