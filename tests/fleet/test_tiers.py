"""The pure parts of tiers: goals, memory for sleepers, who waits, what starts took."""

import asyncio
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.catalog import Arm, DeploymentEntry, EngineSettings, IdlePolicy, KeepWarm
from dataplane.contracts.replica import Demand, Tier, TierCost
from dataplane.fleet.demand import FRESH_S, Demands
from dataplane.fleet.plan import Assignment
from dataplane.fleet.starts import Need, Starts
from dataplane.fleet.tier_memory import TierMemory
from dataplane.fleet.tiers import Goal, Sleeper, Use, goal, within_budget

MONDAY_NOON_S = 4 * 86400 + 12 * 3600
"""1970 began on a Thursday."""


def deployment(*, least: int = 0, schedules: tuple[KeepWarm, ...] = (), **idle: int | None) -> DeploymentEntry:
    return DeploymentEntry(
        id="d",
        tenant_id="acme",
        name="d",
        active=True,
        arms=(Arm(version_id="v", weight=100),),
        grants={},
        engine=EngineSettings(),
        min_replicas=least,
        max_replicas=5,
        idle=IdlePolicy(**idle),
        schedules=schedules,
    )


after = st.one_of(st.none(), st.integers(0, 100))
uses = st.builds(Use, st.one_of(st.none(), st.floats(0, 100)), st.booleans())
DEPTH = {None: 0, Tier.ASLEEP: 1, Tier.WARM: 2, Tier.DISK: 3}


@given(after, after, after, uses, st.floats(100, 300), st.floats(0, 100))
def test_the_idle_go_deeper_only_with_time_never_in_use_and_not_before_it_was_said(
    asleep: int | None, warm: int | None, disk: int | None, use: Use, now_s: float, wait_s: float
) -> None:
    entry = deployment(asleep_after_s=asleep, warm_after_s=warm, disk_after_s=disk)
    now, later = goal(entry, use, now_s, 0.0), goal(entry, use, now_s + wait_s, 0.0)
    assert (now.ready == 0) == (now.tier is not None)
    assert DEPTH[now.tier] <= DEPTH[later.tier]
    if use.is_now:
        assert now == Goal(ready=1)
    if now.next_at_s is not None:
        assert now.next_at_s > now_s
        just_before = now_s + (now.next_at_s - now_s) / 2
        assert goal(entry, use, just_before, 0.0).tier is now.tier
    if (asleep, warm, disk) == (None, None, None) and use.last_s is not None:
        assert now == Goal(ready=1)


def test_a_promised_minimum_and_a_schedule_keep_replicas_ready_however_idle() -> None:
    never = Use(None)
    assert goal(deployment(least=2, asleep_after_s=0), never, 0.0, 0.0) == Goal(ready=2)
    mornings = KeepWarm(days=(0,), from_minute=8 * 60, to_minute=13 * 60, min_replicas=3)
    entry = deployment(schedules=(mornings,), disk_after_s=60)
    assert goal(entry, never, 0.0, MONDAY_NOON_S) == Goal(ready=3)
    assert goal(entry, never, 0.0, MONDAY_NOON_S + 3600) == Goal(ready=0, tier=Tier.DISK)
    assert goal(entry, never, 0.0, MONDAY_NOON_S + 86400) == Goal(ready=0, tier=Tier.DISK)


sleepers = st.lists(
    st.builds(Sleeper, st.uuids().map(str), st.integers(0, 50), st.sampled_from([1.0, 2.0, 3.0]), st.booleans()),
    max_size=8,
    unique_by=lambda sleeper: sleeper.replica_id,
)


@given(sleepers, st.integers(0, 120))
def test_sleepers_fit_the_budget_and_none_gives_way_to_one_used_less_recently_or_of_equals_to_an_idle_one(
    sleepers: list[Sleeper], budget_bytes: int
) -> None:
    staying = within_budget(sleepers, budget_bytes)
    assert sum(s.memory_bytes for s in sleepers if s.replica_id in staying) <= budget_bytes
    for gone in sleepers:
        if gone.replica_id not in staying and gone.memory_bytes <= budget_bytes:
            assert all((s.last_s, s.held) >= (gone.last_s, gone.held) for s in sleepers if s.replica_id in staying)
    if sum(s.memory_bytes for s in sleepers) <= budget_bytes:
        assert staying == {s.replica_id for s in sleepers}


def test_the_latest_word_of_each_gateway_counts_until_it_is_stale() -> None:
    demands = Demands()
    demands.take(Demand("a", 2, {"chat": 3, "code": 0}), 0.0)
    demands.take(Demand("b", 1, {"chat": 2}), 1.0)
    assert demands.waiting(1.0) == {"chat": 5}
    demands.take(Demand("a", 1, {"chat": 100}), 1.0)  # overtaken on its way
    assert demands.waiting(1.0) == {"chat": 5}
    demands.take(Demand("a", 3, {}), 2.0)
    assert demands.waiting(2.0) == {"chat": 2}
    assert demands.waiting(1.0 + FRESH_S + 0.1) == {}


def test_what_is_missing_keeps_its_moment_until_a_process_answers_it() -> None:
    starts = Starts()
    one, two = (Assignment("d", version, "digest", "acme", "d", EngineSettings()) for version in "12")
    starts.missing([one], Tier.DISK, 1.0)
    starts.missing([one, two], Tier.WARM, 2.0)
    assert (starts.of(one), starts.of(two)) == (Need(1.0, Tier.DISK), Need(2.0, Tier.WARM))
    assert starts.answered(one, Tier.WARM, 5.0) == Need(1.0, Tier.DISK)
    assert starts.answered(one, Tier.ASLEEP, 6.0) == Need(6.0, Tier.ASLEEP)
    starts.missing([], Tier.DISK, 7.0)
    assert starts.of(two) is None


def test_costs_are_measured_figures_and_an_unmeasured_tier_is_bounded_by_a_colder_one(tmp_path: Path) -> None:
    memory = TierMemory(tmp_path / "tiers.json")
    assert memory.eta_ms("d", Tier.ASLEEP) is None
    for took_ms in (300, 100, 200):
        memory.started("d", Tier.DISK, took_ms)
    assert memory.costs == {"d": (TierCost(Tier.DISK, p50_ms=200, p95_ms=300, samples=3),)}
    assert memory.eta_ms("d", Tier.ASLEEP) == memory.eta_ms("d", Tier.DISK) == 200
    assert memory.eta_ms("d", Tier.STORE) is None
    memory.started("d", Tier.ASLEEP, 10)
    assert memory.eta_ms("d", Tier.ASLEEP) == 10


def test_uses_and_costs_outlive_the_fleet_and_end_with_their_deployment(tmp_path: Path) -> None:
    path = tmp_path / "tiers.json"
    memory = TierMemory(path)
    used_at_s = time.monotonic() - 100
    memory.used("d", used_at_s)
    memory.started("d", Tier.WARM, 50)
    memory.started("gone", Tier.WARM, 50)
    memory.keep({"d"})
    ended = asyncio.Event()
    ended.set()
    asyncio.run(memory.run(ended))

    again = TierMemory(path)
    last_s = again.last_use_s("d")
    assert last_s is not None
    assert abs(last_s - used_at_s) < 5
    assert again.costs == {"d": (TierCost(Tier.WARM, p50_ms=50, p95_ms=50, samples=1),)}
    path.write_bytes(b"\xff")
    assert TierMemory(path).costs == {}
