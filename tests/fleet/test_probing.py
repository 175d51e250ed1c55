import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dataplane.contracts import auc
from dataplane.contracts.catalog import Share
from dataplane.contracts.probes import ProbeKind
from dataplane.contracts.replica import ReplicaState
from dataplane.fleet import probes, probing
from dataplane.fleet.probe_trials import Card, Finding, GivenUp, Target, Unfit
from dataplane.fleet.probing import WINDOW, Prober, Tally

pytestmark = pytest.mark.anyio
ONE, OTHER = (Target(f"rep_{name}", Path(f"/run/{name}.sock"), "chat", f"dep_{name}", "ver_1") for name in "ab")
Trial = Callable[[Target, Card, random.Random], Awaitable[Finding]]


class Trials:
    """Scripted trials: prompts that were sent before are found by their own tenant alone, and four times as fast."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Card]] = []
        self.running = 0
        self.changed = asyncio.Event()

    async def __call__(self, target: Target, card: Card, draw: random.Random) -> Finding:
        self.running += 1
        assert self.running == 1
        await asyncio.sleep(0)
        self.running -= 1
        self.seen.append((target.replica_id, card))
        self.changed.set()
        shows = card.kind in (ProbeKind.WITHIN, ProbeKind.BATCH)
        seconds = draw.lognormvariate(-4, 0.2) * (4 if card.slow and shows else 1)
        return Finding(seconds, 96, 88 if card.kind is ProbeKind.WITHIN else 0) if not card.slow else Finding(seconds)


def prober(trial: Trial, *targets: Target, share: float = 0.0) -> Prober:
    return Prober(lambda: targets or [ONE], share=share, trial=trial, draw=random.Random(3))


def test_a_deck_has_both_sides_alike_often_in_an_order_that_is_drawn() -> None:
    draw = random.Random(1)
    decks = [probing.deck(draw) for _ in range(3)]
    for cards in decks:
        counts = Counter(cards)
        assert all(counts[Card(kind, True)] == counts[Card(kind, False)] > 0 for kind in ProbeKind)
        assert len(cards) == probing.trials_for(10) == probing.trials_for(1)
    assert decks[0] != decks[1] != decks[2]


async def test_an_order_gives_as_many_times_and_what_they_say_in_every_deployment() -> None:
    trials = Trials()
    both = prober(trials, ONE, OTHER)
    assert both.order(200)
    assert await both.finish()
    found = probes.summary(both.reports())
    assert set(found) == {"dep_a", "dep_b"}
    for kinds in found.values():
        assert kinds["within"]["num_slow"] == kinds["across"]["num_fast"] == 200
        assert kinds["batch"]["num_slow"] == kinds["paced"]["num_fast"] == 20
        assert kinds["within"]["low"] > 0.9
        assert kinds["across"]["low"] < 0.5 < kinds["across"]["high"] < 0.6
        assert kinds["batch"]["auc"] > 0.9 > 0.8 > kinds["paced"]["auc"]
        assert (kinds["within"]["cached_tokens"], kinds["across"]["cached_tokens"]) == (200 * 88, 0)
        assert kinds["across"]["prompt_tokens"] == 200 * 96


async def test_a_deployment_of_many_replicas_does_not_take_the_trials_of_another() -> None:
    many = [ONE, *(ONE._replace(replica_id=f"rep_{number}") for number in range(2)), OTHER]
    some = prober(Trials(), *many)
    some.order(20)
    assert await some.finish()
    found = {(report.replica_id, auc.size(report.slow)) for report in some.reports() if report.kind is ProbeKind.WITHIN}
    assert found == {(ONE.replica_id, 10), ("rep_0", 10), ("rep_1", 10), (OTHER.replica_id, 20)}  # whole decks


async def test_a_trial_that_is_given_up_gives_no_time_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_LEAST_PAUSE_S", 0.0)
    trials = Trials()

    async def busy(target: Target, card: Card, draw: random.Random) -> Finding:
        if card.kind is ProbeKind.BATCH:
            raise GivenUp("the replica has work to do")
        return await trials(target, card, draw)

    some = prober(busy)
    some.order(20)
    assert await some.finish()
    reports = {report.kind: report for report in some.reports()}
    assert ProbeKind.BATCH not in reports
    assert auc.size(reports[ProbeKind.WITHIN].slow) >= 20


@pytest.mark.parametrize("error", [Unfit("status 400: the context is 64 tokens"), ZeroDivisionError()])
async def test_a_replica_that_cannot_be_probed_is_left_alone_and_the_others_are_not(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "_LEAST_PAUSE_S", 0.0)
    trials = Trials()

    async def unfit(target: Target, card: Card, draw: random.Random) -> Finding:
        if target is ONE:
            raise error
        return await trials(target, card, draw)

    both = prober(unfit, ONE, OTHER)
    both.order(10)
    assert not await both.finish()
    assert {replica_id for replica_id, _ in trials.seen} == {OTHER.replica_id}
    alone = prober(unfit, ONE)
    alone.order(10)
    assert not await alone.finish()
    assert not alone.order(10)


async def test_without_a_share_nothing_is_probed_until_it_is_ordered() -> None:
    trials = Trials()
    idle = prober(trials)
    running = asyncio.create_task(idle.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert trials.seen == []
    idle.order(1)
    await trials.changed.wait()
    running.cancel()


async def test_what_was_ordered_of_a_replica_that_is_away_is_probed_when_it_is_back_and_nothing_else_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probing, "_LEAST_PAUSE_S", 0.0)
    trials, here = Trials(), [ONE]
    some = Prober(lambda: here, share=0.0, trial=trials, draw=random.Random(1))
    some.order(1)
    here[:] = [OTHER]
    running = asyncio.create_task(some.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert trials.seen == []
    here[:] = [ONE, OTHER]
    async with asyncio.timeout(5):
        await trials.changed.wait()
    assert {replica_id for replica_id, _ in trials.seen} == {ONE.replica_id}
    running.cancel()


async def test_with_a_share_probing_begins_by_itself_and_rests_behind_each_trial() -> None:
    trials = Trials()
    running = asyncio.create_task(prober(trials, share=0.02).run())
    await trials.changed.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(trials.seen) == 1
    running.cancel()


@pytest.mark.parametrize(("took_s", "share"), [(0.001, 0.02), (0.2, 0.02), (3.0, 0.5)])
def test_trials_take_no_more_than_their_share_of_the_time(took_s: float, share: float) -> None:
    assert took_s / (took_s + probing.rest_s(took_s, share)) <= share + 1e-9


async def test_only_what_has_grown_is_sent_again() -> None:
    some = prober(Trials())
    assert some.unsent() == ()
    some.order(10)
    await some.finish()
    assert {report.kind for report in some.unsent()} == set(ProbeKind)
    assert len(some.unsent()) == 4  # the control plane was away
    some.sent()
    assert some.unsent() == ()
    some.order(1)
    await some.finish()
    assert len(some.unsent()) == 4


def test_only_the_latest_times_are_kept() -> None:
    tally = Tally(ONE, ProbeKind.ACROSS)
    for seconds in (1.0, 2.0, 4.0):
        for _ in range(WINDOW):
            tally.add(True, Finding(seconds))
            tally.add(False, Finding(seconds))
    for _ in range(7):
        tally.add(True, Finding(8.0))
    report = tally.report()
    assert tally.trials == 6 * WINDOW + 7
    assert report.slow == ((auc.bin_of(4.0), WINDOW), (auc.bin_of(8.0), 7))
    assert report.fast == ((auc.bin_of(4.0), WINDOW),)


def test_only_ready_replicas_that_several_tenants_may_call_are_probed() -> None:
    def replica(name: str, deployment_id: str, state: ReplicaState = ReplicaState.READY) -> SimpleNamespace:
        assignment = SimpleNamespace(served_name="chat", deployment_id=deployment_id, version_id="ver_1")
        spec = SimpleNamespace(http_socket=Path(f"/run/{name}.sock"))
        return SimpleNamespace(replica_id=f"rep_{name}", assignment=assignment, state=state, spec=spec)

    deployments = {
        "dep_a": SimpleNamespace(grants={"acme": Share(), "evil": Share()}),
        "dep_own": SimpleNamespace(grants={"acme": Share()}),
    }
    warm = replica("warm", "")
    warm.assignment = None
    found = probing.targets(
        deployments,
        [
            replica("a", "dep_a"),
            replica("asleep", "dep_a", ReplicaState.ASLEEP),
            replica("own", "dep_own"),
            replica("trial", "trial_ver_1"),
            warm,
        ],
    )
    assert found == [ONE]
