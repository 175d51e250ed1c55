"""A model that sleeps, as its callers and the fleet see it."""

import asyncio
import itertools
import json
from collections import Counter
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest
from fake_replica import Call, FakeReplica, Gate, dies, refuses, replies
from gateway_harness import BODY, NO_REDIS, NOW_MS, Harness, error_of, events, gateway
from gateway_world import World, load, report

from dataplane.contracts.catalog import Arm, IdlePolicy, Share
from dataplane.contracts.replica import ReplicaState
from dataplane.contracts.usage import Outcome
from dataplane.gateway.slow_start import FIRST

pytestmark = pytest.mark.anyio
WAIT = "x-pagoda-cold-wait-s"
BEAT = {"x-pagoda-cold-heartbeat": "1"}
NEW_PROCESS = itertools.count(100)


async def until_waiting(g: Harness, count: int) -> None:
    async with asyncio.timeout(90):
        while g.gateway.room.waiting_count != count:
            await asyncio.sleep(0.005)


async def until_answered(calls: list[asyncio.Future[httpx.Response]], count: int) -> None:
    async with asyncio.timeout(90):
        while sum(call.done() for call in calls) < count:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def waking(g: Harness, script=None, **shown: object):
    """A replica that the table shows as READY once it listens."""
    socket = g.home / "woken.sock"
    shown = {"pid": next(NEW_PROCESS), "since_ms": NOW_MS} | shown
    async with FakeReplica(socket, script) as replica:
        await g.outside.publish([report("rep_w", str(socket), **shown)])
        await g.settled()
        yield replica


async def test_a_cold_model_answers_as_soon_as_a_replica_is_ready(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        await g.outside.publish([report("rep_w", state=ReplicaState.LOADING)])
        calls = [asyncio.ensure_future(g.post()) for _ in range(10)]
        await until_waiting(g, 10)
        async with waking(g):
            assert {response.status_code for response in await asyncio.gather(*calls)} == {200}
        assert all(record.queue_ms is not None for record in await g.records(10))


async def test_a_model_that_stays_cold_is_a_503_with_a_measured_time_to_come_back(world: World, home) -> None:
    policy = IdlePolicy(cold_wait_s=0)
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], idle=policy, min_replicas=0)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        await g.outside.publish([report("rep_0", state=ReplicaState.ASLEEP, idle=True, eta_ms=8_000)])
        await g.settled()
        for stream in (True, False):
            response = await g.post(BODY | {"stream": stream})
            assert (response.status_code, error_of(response.content)["code"]) == (503, "model_cold")
            assert "in about 8 s, when it is expected" in error_of(response.content)["message"]
            assert 8 <= int(response.headers["retry-after"]) <= 12
        for record in await g.records(2):
            assert (record.outcome, record.error_code, record.replica_id) == (Outcome.REFUSED, "model_cold", "")
            assert record.completion_tokens == 0
        await g.outside.until_demand({"dep_chat": 0})
        assert {"dep_chat": 1} in [demand.waiting for demand in g.outside.demands], "who does not wait wakes it too"


async def test_a_wait_in_vain_takes_nothing_from_the_limits(world: World, home) -> None:
    world.limit("acme", tokens_per_minute=1000)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        for _ in range(3):
            response = await g.post(BODY | {"max_tokens": 900}, headers={WAIT: "0.01"})
            assert error_of(response.content)["code"] == "model_cold"


async def test_300_callers_of_a_sleeping_model_cause_one_load_and_each_is_served_or_told_when_to_come(
    world: World, home
) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        await g.outside.publish([
            report("rep_w", state=ReplicaState.ASLEEP, deployment_id="dep_shared", idle=True, eta_ms=2_000)
        ])  # fmt: skip
        await g.settled()
        under_way, most = 0, 0

        async def counted(call: Call) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await replies()(call)
            under_way -= 1

        def call(who: str) -> asyncio.Future[httpx.Response]:
            key, model = (world.acme_key, "shared") if who == "acme" else (world.evil_key, "acme/shared")
            return asyncio.ensure_future(g.post_alone(BODY | {"model": model}, key.text))

        flood = [call("evil") for _ in range(270)]
        await until_answered(flood, 14)
        others = [call("acme") for _ in range(30)]
        await until_answered(flood, 44)
        assert g.gateway.room.waiting_count == 256
        async with waking(g, counted, deployment_id="dep_shared") as replica:
            answers = await asyncio.gather(*flood)
            assert Counter(answer.status_code for answer in await asyncio.gather(*others)) == {200: 30}
        told = [answer for answer in answers if answer.status_code != 200]
        codes = Counter(error_of(answer.content)["code"] for answer in told)
        assert codes == {"overloaded": 14, "queue_full": 30}, "its own limit once others wait, ours before"
        assert all(2000 <= int(answer.headers["retry-after-ms"]) <= 5000 for answer in told)
        assert len({answer.headers["retry-after-ms"] for answer in told}) > 30
        assert len({answer.headers["retry-after"] for answer in told}) > 1
        assert len(replica.calls) == 256
        assert most <= FIRST
        await g.outside.until_demand({"dep_shared": 0})
        counts = [demand.waiting["dep_shared"] for demand in g.outside.demands]
        assert [bool(count) for count, _ in itertools.groupby(counts, bool)] == [True, False], "it was woken once"
        sequences = [demand.sequence for demand in g.outside.demands]
        assert sequences == sorted(set(sequences))
        records = await g.records(300)
        assert Counter(record.outcome for record in records) == {Outcome.STOP: 256, Outcome.REFUSED: 44}


async def test_waiters_leave_in_turn_by_weight_at_the_pace_that_the_replica_shows(world: World, home) -> None:
    shared = world.deployments["shared"]
    grants = {"ten_acme": Share(weight=1), "ten_evil": Share(weight=3)}
    world.deployments["shared"] = msgspec.structs.replace(shared, grants=grants)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        calls = [asyncio.ensure_future(g.post(BODY | {"model": "shared"})) for _ in range(12)]
        await until_waiting(g, 12)
        for n in range(12):
            calls.append(asyncio.ensure_future(g.post(BODY | {"model": "acme/shared"}, key=world.evil_key.text)))
            await until_waiting(g, 13 + n)
        gate = Gate()
        shown = {"deployment_id": "dep_shared", "pid": 1, "since_ms": NOW_MS}
        async with waking(g, gate, load=load(step=1), **shown) as replica:
            await replica.until_called(FIRST)
            assert g.gateway.room.waiting_count == 24 - FIRST
            assert Counter(call.headers["x-pagoda-tenant"] for call in replica.calls) == {"ten_acme": 1, "ten_evil": 3}
            late = asyncio.ensure_future(g.post(BODY | {"model": "shared"}))
            await until_waiting(g, 25 - FIRST)
            for step, limit in ((2, 2 * FIRST), (3, 4 * FIRST)):
                under_way = load(step=step, running=len(replica.calls))
                await g.outside.publish([report("rep_w", replica.socket, load=under_way, **shown)])
                await g.settled()
                assert g.gateway.room.waiting_count == 25 - limit
                await replica.until_called(limit)
            assert Counter(call.headers["x-pagoda-tenant"] for call in replica.calls) == {"ten_acme": 4, "ten_evil": 12}
            gate.opened.set()
            assert {answer.status_code for answer in await asyncio.gather(*calls, late)} == {200}


async def test_who_waits_when_its_model_is_there_but_busy_is_told_of_the_rush_and_not_of_the_cold(
    world: World, home
) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        calls = [asyncio.ensure_future(g.post()) for _ in range(FIRST + 1)]
        await until_waiting(g, FIRST + 1)
        gate = Gate()
        async with waking(g, gate):
            assert g.gateway.room.waiting_count == 1
            answer = await g.post(headers={WAIT: "0.1"})
            assert (answer.status_code, error_of(answer.content)["code"]) == (503, "overloaded")
            gate.opened.set()
            assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}


async def test_the_queue_is_bounded_and_the_rest_are_told_at_once(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0, max_cold_requests=5) as g:
        calls = [asyncio.ensure_future(g.post()) for _ in range(20)]
        await until_answered(calls, 15)
        answers = [call.result() for call in calls if call.done()]
        assert {error_of(answer.content)["code"] for answer in answers} == {"overloaded"}
        assert all("retry-after" in answer.headers for answer in answers)
        assert g.gateway.room.waiting_count == 5
        for call in calls:
            call.cancel()
        records = await g.records(20)
        assert Counter(record.outcome for record in records) == {Outcome.REFUSED: 15, Outcome.ABORTED: 5}


async def test_a_tenant_waits_for_many_models_only_within_its_own_bound(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0, max_tenant_cold_requests=3) as g:
        waiting = [asyncio.ensure_future(g.post(BODY | {"model": name})) for name in ("chat", "shared", "shared@1")]
        await until_waiting(g, 3)
        answer = await g.post()
        assert (answer.status_code, error_of(answer.content)["code"]) == (429, "queue_full")
        assert "3 of this tenant's requests" in error_of(answer.content)["message"]
        other = asyncio.ensure_future(g.post(BODY | {"model": "secret"}, key=world.evil_key.text))
        await until_waiting(g, 4)
        for call in (*waiting, other):
            call.cancel()
        await until_waiting(g, 0)


async def test_a_caller_that_goes_away_while_it_waits_leaves_the_queue(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        call = asyncio.ensure_future(g.post())
        await until_waiting(g, 1)
        call.cancel()
        [record] = await g.records(1)
        assert record.outcome is Outcome.ABORTED
        assert g.gateway.room.waiting_count == 0
        await g.outside.until_demand({"dep_chat": 0})


def _pause(world: World) -> None:
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], active=False)


def _change_version(world: World) -> None:
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], arms=(Arm("ver_2", 100),))


@pytest.mark.parametrize(("change", "code"), [(_pause, "model_paused"), (_change_version, "model_cold")])
async def test_who_waits_for_what_is_no_longer_served_is_told_so(world: World, home, change, code: str) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        calls = [asyncio.ensure_future(g.post(BODY | {"model": name})) for name in ("chat", "chat@1", "shared")]
        await until_waiting(g, 3)
        change(world)
        await g.change_catalog()
        for answer in await asyncio.gather(*calls[:2]):
            assert (answer.status_code, error_of(answer.content)["code"]) == (503, code)
            assert "retry-after" in answer.headers
        assert g.gateway.room.waiting_count == 1
        calls[2].cancel()


async def test_who_may_no_longer_call_is_taken_from_the_queue(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        call = asyncio.ensure_future(g.post())
        await until_waiting(g, 1)
        world.keys.pop(world.acme_key.lookup)
        await g.change_catalog()
        answer = await call
        assert (answer.status_code, error_of(answer.content)["code"]) == (401, "key_revoked")
        assert g.gateway.room.waiting_count == 0


async def test_a_fleet_that_was_away_hears_of_who_waits_when_it_is_back(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        g.outside.away = True
        call = asyncio.ensure_future(g.post())
        await until_waiting(g, 1)
        g.outside.away = False
        await g.outside.until_demand({"dep_chat": 1})
        assert g.outside.demands[-1].gateway_id == g.gateway.id
        async with waking(g):
            assert (await call).status_code == 200


def sending(g: Harness, headers: dict[str, str]) -> asyncio.Future[httpx.Response]:
    """Send a request for a stream; done with the head of the answer."""
    body = json.dumps(BODY | {"stream": True}).encode()
    request = g.client.build_request("POST", "/v1/chat/completions", content=body, headers=g.headers() | headers)
    return asyncio.ensure_future(g.client.send(request, stream=True))


async def test_a_stream_that_waits_hears_nothing_unasked(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0, heartbeat_s=0.02) as g:
        call = sending(g, {})
        await until_waiting(g, 1)
        await asyncio.sleep(0.2)
        assert not call.done()
        async with waking(g):
            assert events((await (await call).aread()).decode())[-1] == "[DONE]"


async def test_a_stream_that_asks_hears_that_it_waits_and_is_then_served_even_where_a_replica_is_lost(
    world: World, home
) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0, heartbeat_s=0.02) as g:
        pieces = (await sending(g, BEAT)).aiter_text()
        text = await anext(pieces)
        assert text.startswith(": waiting\n\n")
        async with waking(g, dies) as lost:
            await lost.until_called(1)
        async with waking(g):
            text += "".join([piece async for piece in pieces])
        said = events(text.replace(": waiting\n\n", ""))
        assert (len(said), said[-1]) == (4, "[DONE]"), (
            "what was heard is no part of an answer, so another could give it"
        )


async def test_the_end_of_a_wait_that_was_heard_is_an_error_event(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0, heartbeat_s=0.01) as g:
        response = await sending(g, BEAT | {WAIT: "2"})
        text = (await response.aread()).decode()
        assert response.status_code == 200
        *comments, event = text.removesuffix("\n\n").split("\n\n")
        assert set(comments) == {": waiting"}
        assert error_of(event.removeprefix("data: "))["code"] == "model_cold"
        [record] = await g.records(1)
        assert (record.outcome, record.error_code) == (Outcome.REFUSED, "model_cold")


async def test_a_refusal_by_the_replica_after_a_wait_that_was_heard_is_an_error_event(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0, heartbeat_s=0.02) as g:
        response = await sending(g, BEAT)
        async with waking(g, refuses(400, "context_length_exceeded")):
            text = (await response.aread()).decode()
        event = text.removesuffix("\n\n").split("\n\n")[-1]
        assert error_of(event.removeprefix("data: "))["code"] == "context_length_exceeded"


async def test_a_request_that_met_a_replica_as_it_fell_asleep_is_served_by_it_when_it_wakes(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        [replica] = g.replicas
        replica.script = refuses(503, "model_cold")
        call = asyncio.ensure_future(g.post())
        await until_waiting(g, 1)
        await g.outside.publish([report("rep_0", replica.socket, state=ReplicaState.ASLEEP, since_ms=1)])
        await g.outside.until_demand({"dep_chat": 1})
        replica.script = replies()
        await g.outside.publish([report("rep_0", replica.socket, since_ms=2)])
        assert (await call).status_code == 200
        outcomes = [record.outcome for record in await g.records(2)]
        assert outcomes == [Outcome.REDISPATCHED, Outcome.STOP]
