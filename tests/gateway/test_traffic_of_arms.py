"""Rollouts as their callers and the fleet see them: arms by weight and by choice, and never one that is not READY."""

import asyncio

import msgspec
import pytest
from fake_replica import Call, FakeReplica, Gate, dies, pieces, replies, token_event
from gateway_harness import BODY, NO_REDIS, NOW_MS, Harness, error_of, gateway
from gateway_world import World, load, version

from dataplane.contracts import headers
from dataplane.contracts.catalog import CANDIDATE, PREVIOUS, STABLE, Arm, Hold
from dataplane.contracts.replica import ReplicaState
from dataplane.contracts.usage import Outcome
from dataplane.gateway.slow_start import FIRST

pytestmark = pytest.mark.anyio
WAIT = headers.COLD_WAIT_S


def roll_out(world: World, weight: int, hold: Hold = Hold.READY) -> None:
    """Give chat a candidate beside its stable arm."""
    arms = (Arm("ver_1", 100 - weight), Arm("ver_2", weight, CANDIDATE, hold))
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], arms=arms)


def promote(world: World, hold: Hold = Hold.ASLEEP) -> None:
    arms = (Arm("ver_2", 100), Arm("ver_1", 0, PREVIOUS, hold))
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], arms=arms)


def use(arm: str) -> dict[str, str]:
    return {headers.USE_ARM: arm}


async def both(g: Harness) -> list[FakeReplica]:
    """Start a READY replica of the stable version and one of the candidate."""
    found = [await g.add_replica(version_id=version_id) for version_id in ("ver_1", "ver_2")]
    await g.settled()
    return found


async def without_candidate(g: Harness, state: ReplicaState = ReplicaState.LOADING) -> None:
    """Show the candidate's replica as not READY."""
    stable, candidate = g.outside.table.replicas
    await g.outside.publish([stable, msgspec.structs.replace(candidate, state=state)])
    await g.settled()


async def until_waiting(g: Harness, count: int) -> None:
    async with asyncio.timeout(90):
        while g.gateway.room.waiting_count != count:
            await asyncio.sleep(0.005)


async def test_a_tester_chooses_an_arm_whatever_its_weight_and_every_record_says_so(world: World, home) -> None:
    roll_out(world, 0)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        stable, candidate = await both(g)
        for model, chosen in (("chat", CANDIDATE), ("chat", STABLE), ("chat@2", CANDIDATE), ("chat@1", STABLE)):
            answer = await g.post(BODY | {"model": model}, headers=use(chosen))
            assert answer.headers["x-served-version"] == {STABLE: "ver_1", CANDIDATE: "ver_2"}[chosen]
        await g.post()
        await g.post(BODY | {"model": "chat@2"})
        told = [[(call.headers["x-pagoda-arm"], call.headers.get("x-pagoda-forced")) for call in replica.calls]
                for replica in (stable, candidate)]  # fmt: skip
        assert told == [[(STABLE, "1"), (STABLE, "1"), (STABLE, None)], [(CANDIDATE, "1")] * 3]
        assert [record.forced for record in await g.records(6)] == [True, True, True, True, False, True]


@pytest.mark.parametrize("value", ["", "previous", "Candidate", "ver_2", "stable,candidate"])
async def test_what_is_no_arm_to_choose_is_refused_by_the_header_s_name(world: World, home, value: str) -> None:
    roll_out(world, 50)
    async with gateway(world, home, NO_REDIS) as g:
        answer = await g.post(headers=use(value))
        error = error_of(answer.content)
        assert (answer.status_code, error["param"]) == (400, headers.USE_ARM)
        assert "must be 'stable' or 'candidate'" in error["message"]


async def test_a_version_and_an_arm_that_are_not_the_same_are_refused(world: World, home) -> None:
    roll_out(world, 50)
    async with gateway(world, home, NO_REDIS) as g:
        answer = await g.post(BODY | {"model": "chat@1"}, headers=use(CANDIDATE))
        assert (answer.status_code, error_of(answer.content)["param"]) == (400, headers.USE_ARM)
        assert "'chat@1' is a version of the arm 'stable'" in error_of(answer.content)["message"]


async def test_what_is_not_there_to_be_chosen_is_the_one_404_with_what_may_be_called(world: World, home) -> None:
    world.versions["ver_2"] = version("ver_2", 2, "next")
    async with gateway(world, home, NO_REDIS) as g:

        async def said(model: str = "chat", key: str | None = None, **header: str) -> str:
            answer = await g.post(BODY | {"model": model}, key, headers=header)
            assert (answer.status_code, error_of(answer.content)["code"]) == (404, "model_not_found")
            return error_of(answer.content)["message"]

        message = "There is no model 'chat' with an arm 'candidate' for this API key. It may call: {}."
        assert await said(**use(CANDIDATE)) == message.format("chat, chat@1, chat@stable")
        roll_out(world, 0, Hold.NONE)
        await g.change_catalog()
        assert await said(**use(CANDIDATE)) == message.format("chat, chat@1, chat@stable")
        assert "It may call: chat, chat@1, chat@stable." in await said("chat@2")
        for hold in Hold:
            promote(world, hold)
            await g.change_catalog()
            assert await said(**use(CANDIDATE)) == message.format("chat, chat@2, chat@next")
            for gone in ("chat@1", "chat@stable"):
                assert "It may call: chat, chat@2, chat@next." in await said(gone)
        stranger = await said("chat", world.evil_key.text, **use(CANDIDATE))
        assert stranger == await said("chat", world.evil_key.text)


async def test_weight_sends_nobody_to_a_candidate_that_is_not_ready(world: World, home) -> None:
    roll_out(world, 100)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        stable, candidate = await both(g)
        for state in ReplicaState:
            await without_candidate(g, state)
            assert (await g.post()).headers["x-served-version"] == ("ver_2" if state is ReplicaState.READY else "ver_1")
        assert len(candidate.calls) == 1
        records = await g.records(len(ReplicaState))
        assert {(record.version_id, record.arm) for record in records} == {("ver_1", STABLE), ("ver_2", CANDIDATE)}
        assert all(record.replica_id == {STABLE: "rep_0", CANDIDATE: "rep_1"}[record.arm] for record in records)
        await without_candidate(g)
        for asked, model in ((use(CANDIDATE), "chat"), ({}, "chat@2")):
            answer = await g.post(BODY | {"model": model}, headers=asked | {WAIT: "0.01"})
            assert (answer.status_code, error_of(answer.content)["code"]) == (503, "model_cold"), (
                "who chose waits for it"
            )
        assert len(stable.calls) == len(ReplicaState) - 1


async def test_a_second_try_stays_on_its_arm_and_goes_to_the_stable_one_only_where_that_has_no_other_replica(
    world: World, home
) -> None:
    roll_out(world, 100)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        stable, first = await both(g)
        second = await g.add_replica(dies, version_id="ver_2")
        await g.settled()
        first.script = dies
        asked = [(await g.post(headers=header)).status_code for header in ({}, use(CANDIDATE) | {WAIT: "0.01"}, {})]
        assert asked == [502, 503, 200], "both of the candidate were lost at once, and are avoided then"
        assert (len(first.calls), len(second.calls), len(stable.calls)) == (1, 1, 1)
        records = [(record.arm, record.outcome) for record in await g.records(4)]
        lost = [(CANDIDATE, Outcome.REDISPATCHED), (CANDIDATE, Outcome.FAILED)]
        assert records == [*lost, (CANDIDATE, Outcome.REFUSED), (STABLE, Outcome.STOP)]


async def test_a_request_that_lost_the_candidate_s_only_replica_is_answered_by_the_stable_arm_unless_it_chose(
    world: World, home
) -> None:
    roll_out(world, 100)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        stable, candidate = await both(g)
        candidate.script = dies
        chose = await g.post(headers=use(CANDIDATE) | {WAIT: "0.01"})
        assert error_of(chose.content)["code"] == "model_cold"
        assert stable.calls == []
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        stable, candidate = await both(g)
        candidate.script = dies
        answer = await g.post()
        assert (answer.status_code, answer.headers["x-served-version"]) == (200, "ver_1")
        assert stable.calls[0].headers["x-pagoda-arm"] == STABLE
        lost, served = await g.records(2)
        assert (lost.arm, lost.version_id, lost.outcome) == (CANDIDATE, "ver_2", Outcome.REDISPATCHED)
        assert (served.arm, served.version_id, served.outcome) == (STABLE, "ver_1", Outcome.STOP)


async def test_once_a_byte_was_sent_nobody_else_answers(world: World, home) -> None:
    roll_out(world, 100)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        stable, candidate = await both(g)
        candidate.script = pieces(token_event(1), then="die")
        _, data = await g.stream()
        assert error_of(data[-1])["code"] == "replica_lost"
        assert stable.calls == []


async def no_candidate(g: Harness) -> None:
    g.world.deployments["chat"] = msgspec.structs.replace(g.world.deployments["chat"], arms=(Arm("ver_1", 100),))
    await g.change_catalog()


@pytest.mark.parametrize("leave", [without_candidate, no_candidate], ids=["not READY", "rolled back"])
async def test_who_waits_for_a_candidate_that_goes_away_is_served_by_the_stable_arm(world: World, home, leave) -> None:
    roll_out(world, 100)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        gate = Gate()
        await g.add_replica(version_id="ver_1")
        await g.add_replica(gate, version_id="ver_2", since_ms=NOW_MS)
        await g.settled()
        calls = [asyncio.ensure_future(g.post()) for _ in range(FIRST + 3)]
        await until_waiting(g, 3)
        chose = asyncio.ensure_future(g.post(headers=use(CANDIDATE)))
        await until_waiting(g, 4)
        await leave(g)
        await until_waiting(g, 1 if leave is without_candidate else 0)
        gate.opened.set()
        answers = await asyncio.gather(*calls)
        assert [answer.status_code for answer in answers] == [200] * len(calls)
        assert sum(answer.headers["x-served-version"] == "ver_1" for answer in answers) == 3
        records = await g.records(len(calls))
        assert sum(record.arm == STABLE for record in records) == 3
        chose.cancel()


async def test_a_replica_that_has_just_become_ready_is_given_a_few_while_another_takes_the_rest(
    world: World, home
) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        gate = Gate()
        old = await g.add_replica(gate, load=load(step=9))
        new = await g.add_replica(gate, load=load(step=1), since_ms=NOW_MS)
        await g.settled()
        calls = [asyncio.ensure_future(g.post()) for _ in range(40)]
        await new.until_called(FIRST)
        await old.until_called(40 - FIRST)
        assert g.gateway.room.waiting_count == 0
        shown = g.outside.table.replicas
        await g.outside.publish([shown[0], msgspec.structs.replace(shown[1], load=load(step=2, running=FIRST))])
        await g.settled()
        calls += [asyncio.ensure_future(g.post()) for _ in range(40)]
        await new.until_called(2 * FIRST)
        await old.until_called(80 - 2 * FIRST)
        gate.opened.set()
        assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}


async def test_where_there_is_no_other_they_wait_and_leave_at_its_pace(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        under_way, most = 0, 0

        async def counted(call: Call) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await replies()(call)
            under_way -= 1

        replica = await g.add_replica(counted, since_ms=NOW_MS)
        await g.settled()
        answers = await asyncio.gather(*(g.post() for _ in range(60)))
        assert {answer.status_code for answer in answers} == {200}
        assert len(replica.calls) == 60
        assert most <= FIRST


async def test_each_record_says_how_long_the_key_the_limits_and_the_wait_for_a_replica_took(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        waiting = asyncio.ensure_future(g.post())
        await until_waiting(g, 1)
        await asyncio.sleep(0.05)
        await g.add_replica()
        await waiting
        refused = await g.post(BODY | {"model": "shared"}, headers={WAIT: "0.05"})
        assert refused.status_code == 503
        await g.post()
        waited, in_vain, at_once = [record.phases for record in await g.records(3)]
        for phases in (waited, in_vain, at_once):
            assert min(phases.auth_ms, phases.admission_ms, phases.cold_ms) >= 0
            assert phases.prefill_ms is None, "that is for the replica to say"
        assert waited.cold_ms >= 50
        assert in_vain.cold_ms >= 50


async def test_the_weights_of_the_catalog_in_force_are_shown(world: World, home) -> None:
    roll_out(world, 25)
    async with gateway(world, home, NO_REDIS, replicas=0) as g:
        await both(g)
        await g.post(headers=use(CANDIDATE))
        secret = {"authorization": f"Bearer {g.gateway.settings.internal_secret}"}
        text = (await g.client.get("/metrics", headers=secret)).text
        for arm, version_id, weight in ((STABLE, "ver_1", 75.0), (CANDIDATE, "ver_2", 25.0)):
            labels = f'arm="{arm}",deployment="dep_chat",version="{version_id}"'
            assert f"pagoda_gateway_arm_weight{{{labels}}} {weight}" in text
        assert 'pagoda_gateway_arm_requests_total{arm="candidate",code="ok",version="ver_2"} 1.0' in text
