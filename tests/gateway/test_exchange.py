import asyncio

import pytest
from gateway_world import PEPPERS, World

from dataplane.contracts.catalog import Arm
from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.usage import Outcome, Phases, UsageRecord
from dataplane.gateway import auth, intake
from dataplane.gateway.arm_choice import Choice
from dataplane.gateway.exchange import Exchange
from dataplane.gateway.patience import Patience
from dataplane.gateway.sse import Tally
from dataplane.http_server.asgi import ClientGone
from dataplane.spool.writer import SpoolFull

pytestmark = pytest.mark.anyio
REVOKED = ApiError(Code.KEY_REVOKED, "revoked")


class Spooled(list[UsageRecord]):
    full = False

    def append_nowait(self, record: UsageRecord) -> None:
        self.append(record)


class Full(Spooled):
    def append_nowait(self, record: UsageRecord) -> None:
        raise SpoolFull("full")


class Release:
    """Settles once it is let go; ``settled`` are the tokens it was told."""

    def __init__(self) -> None:
        self.settled: list[int] = []
        self.let_go = asyncio.Event()
        self.asked = asyncio.Event()

    async def __call__(self, tokens: int) -> None:
        self.asked.set()
        await self.let_go.wait()
        self.settled.append(tokens)


USUAL = Patience(30.0)
PROMPT = b'{"model":"chat","prompt":"hello"}'


def exchange(
    release: Release, spool: Spooled | None = None, body: bytes = PROMPT, patience: Patience = USUAL
) -> Exchange:
    world = World()
    caller = auth.authenticate(world.acme_key.text, world.catalog(), PEPPERS, 0)
    return Exchange(
        request_id="req_1",
        endpoint="/v1/completions",
        caller=caller,
        choice=Choice(world.deployments["chat"], Arm("ver_1", 100)),
        intake=intake.parse(body),
        patience=patience,
        reserved_tokens=100,
        phases=Phases(auth_ms=1, admission_ms=2),
        spool=Spooled() if spool is None else spool,
        release=release,
    )


async def test_a_cut_does_not_interrupt_the_settlement_and_it_happens_once() -> None:
    release = Release()
    running = exchange(release)
    work = asyncio.ensure_future(running.run(running.settle))
    await release.asked.wait()
    running.cut(ClientGone())
    with pytest.raises(ClientGone):
        await work
    release.let_go.set()
    await running.settle()
    assert release.settled == [0]


@pytest.mark.parametrize(
    ("body", "found", "tokens"),
    [
        (PROMPT, False, 0),
        (PROMPT, True, 100),  # all that was reserved
        (PROMPT[:-1] + b',"stream":true}', True, 12),  # the estimate of the prompt
    ],
    ids=["before a replica had it", "a whole answer", "a stream before its first event"],
)
async def test_hanging_up_on_a_replica_that_has_said_nothing_is_no_way_round_the_limit(
    body: bytes, found: bool, tokens: int
) -> None:
    release = Release()
    release.let_go.set()
    running = exchange(release, body=body)

    async def work() -> None:
        with running.attempt() as attempt:
            attempt.found_s = 1.0 if found else None
            await asyncio.Event().wait()

    working = asyncio.ensure_future(running.run(work))
    await asyncio.sleep(0)
    running.cut(ClientGone())
    with pytest.raises(ClientGone):
        await working
    await running.settle()
    assert release.settled == [tokens]


async def test_a_cut_that_comes_before_the_work_still_ends_it() -> None:
    running = exchange(Release())
    running.cut(REVOKED)
    with pytest.raises(ApiError, match="revoked"):
        await running.run(asyncio.Event().wait)


async def test_the_first_cause_is_the_one_that_counts_and_a_cut_after_the_end_is_nothing() -> None:
    running = exchange(Release())
    work = asyncio.ensure_future(running.run(asyncio.Event().wait))
    await asyncio.sleep(0)
    running.cut(REVOKED)
    running.cut(ClientGone())
    with pytest.raises(ApiError, match="revoked"):
        await work
    done = exchange(Release())
    await done.run(lambda: asyncio.sleep(0))
    done.cut(REVOKED)
    assert done.cause is None


@pytest.mark.parametrize(
    ("ends", "outcome", "code"),
    [
        (lambda a: None, Outcome.STOP, ""),
        (ApiError(Code.MODEL_COLD, "m"), Outcome.REFUSED, "model_cold"),
        (ApiError(Code.REPLICA_LOST, "m"), Outcome.FAILED, "replica_lost"),
        (RuntimeError("bug"), Outcome.FAILED, "internal"),
    ],
    ids=["stop", "cold", "lost", "bug"],
)
async def test_however_an_attempt_ends_there_is_one_record_of_it(ends, outcome: Outcome, code: str) -> None:
    spool = Spooled()
    running = exchange(Release(), spool)

    async def work() -> None:
        with running.attempt() as attempt:
            attempt.tally = Tally(prompt_tokens=7, completion_tokens=5, finish_reason="stop")
            attempt.delivered_tokens = 4
            if isinstance(ends, Exception):
                raise ends
            attempt.finished()

    if isinstance(ends, Exception):
        with pytest.raises(type(ends)):
            await running.run(work)
    else:
        await running.run(work)
    [record] = spool
    assert (record.outcome, record.error_code, record.completion_tokens, record.attempt) == (outcome, code, 4, 1)
    assert running.tokens() == 12


@pytest.mark.parametrize(
    ("patience", "lost_one", "forced"),
    [
        (Patience(0.0, shortened=True), False, True),
        (Patience(0.0, shortened=True), True, False),
        (Patience(0.0), False, False),
    ],
    ids=["would not wait", "lost its replica", "waited as the deployment says"],
)
async def test_who_would_not_wait_for_a_replica_is_no_evidence_against_an_arm(patience, lost_one, forced) -> None:
    spool = Spooled()
    running = exchange(Release(), spool, patience=patience)
    if lost_one:
        with running.attempt() as attempt:
            attempt.found_s, attempt.outcome = attempt.started_s, Outcome.REDISPATCHED
    with pytest.raises(ApiError), running.attempt():
        raise ApiError(Code.OVERLOADED, "the turn did not come")
    assert any(record.forced for record in spool) is forced


@pytest.mark.parametrize(("cause", "code"), [(REVOKED, "key_revoked"), (ClientGone(), "")])
async def test_an_attempt_that_is_cut_is_recorded_as_aborted_and_why(cause, code: str) -> None:
    spool = Spooled()
    running = exchange(Release(), spool)

    async def work() -> None:
        with running.attempt():
            running.cut(cause)
            await asyncio.Event().wait()

    with pytest.raises(type(cause)):
        await running.run(work)
    assert [(record.outcome, record.error_code) for record in spool] == [(Outcome.ABORTED, code)]


async def test_a_seat_at_once_is_no_wait_and_what_the_key_and_the_limits_took_is_kept() -> None:
    spool = Spooled()
    running = exchange(Release(), spool)
    for waited_s in (0.0, 2.0):
        with running.attempt() as attempt:
            attempt.found_s = attempt.started_s + waited_s
            attempt.finished()
    assert [record.phases for record in spool] == [Phases(1, 2, cold_ms) for cold_ms in (0, 2000)]


async def test_a_record_that_cannot_be_kept_does_not_break_the_answer() -> None:
    running = exchange(Release(), Full())
    with running.attempt() as attempt:
        attempt.finished()


async def test_before_a_replica_computed_anything_nothing_is_charged() -> None:
    running = exchange(Release())
    assert running.tokens() == 0
    with running.attempt() as attempt:
        assert running.tokens() == 0
        attempt.tally.completion_tokens = 3
        # The replica did not say how long the prompt was: the estimate stands.
        assert running.tokens() == 3 + running.intake.prompt_tokens
