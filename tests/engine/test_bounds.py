"""What the counter promises whatever the load: how far tenants come apart, and how long a head waits."""

from typing import Any

import pytest
from fairness_simulation import Simulation, harmonic
from hypothesis import given, settings, target
from hypothesis import strategies as st

from dataplane.contracts.catalog import Share
from dataplane.engine.config import EngineConfig

loads = st.lists(
    st.fixed_dictionaries(
        {
            "weight": st.integers(1, 4),
            "guarantee_tokens": st.sampled_from([0, 0, 80, 160]),
            "cap_tokens": st.sampled_from([None, None, 200, 400]),
            "depth": st.integers(0, 4),
            "from_step": st.sampled_from([0, 0, 60]),
            "every": st.sampled_from([1, 1, 7, 40]),
            "prompt": st.tuples(st.integers(1, 20), st.integers(20, 150)),
            "output": st.tuples(st.integers(1, 8), st.integers(8, 50)),
            "common": st.sampled_from([0, 16]),
            "aborts_every": st.sampled_from([None, None, 3, 20]),
            "usual": st.sampled_from([256.0, 2.0]),  # 2: its requests are long soon
        }
    ),
    min_size=2,
    max_size=4,
)


def drawn(
    tenants: list[dict], num_blocks: int, slots: int, step_token_budget: int, seed: int, *, steps: int
) -> Simulation:
    """Run a load that was drawn."""
    names = [f"t{number}" for number in range(len(tenants))]
    shares = {
        name: Share(load["guarantee_tokens"], load["cap_tokens"], load["weight"])
        for name, load in zip(names, tenants, strict=True)
    }
    simulation = Simulation(
        shares, seed=seed, num_blocks=num_blocks, max_num_seqs=slots, step_token_budget=step_token_budget
    )
    for name, load in zip(names, tenants, strict=True):
        simulation.driver.tenant(name).usual_output_tokens = load["usual"]

    def feed(step: int) -> None:
        for name, load in zip(names, tenants, strict=True):
            if step >= load["from_step"] and step % load["every"] == 0:
                common = min(load["common"], load["prompt"][0])
                simulation.backlog(name, load["depth"], load["prompt"], load["output"], common=common)
            if load["aborts_every"] and step % load["aborts_every"] == 0:
                simulation.abort_one(name)

    return simulation.run(steps, feed)


def check_promises(simulation: Simulation) -> None:
    """What holds whatever the load."""
    assert simulation.worst <= 1
    assert simulation.worst_interval <= 1
    simulation.check_what_tenants_are_told()
    config = simulation.driver.config
    worked_tokens = simulation.computed_tokens - simulation.recomputed_tokens
    guaranteed_blocks = sum(load.guarantee_blocks for load in simulation.driver.engine.tenant_loads())
    # A reclaim is paid for when its victims compute again: at any time a pool full of them may still be unpaid.
    burst_tokens = (guaranteed_blocks + config.num_blocks) * config.block_size
    assert simulation.reclaimed_tokens <= config.reclaim_recompute_share * worked_tokens + burst_tokens


sizes = (st.integers(90, 200), st.sampled_from([2, 6, 16]), st.sampled_from([16, 64]), st.integers(0, 99))


@settings(max_examples=60, deadline=None)
@given(loads, *sizes)
def test_counters_and_service_stay_within_the_bound_whatever_the_load(
    tenants: list[dict], num_blocks: int, slots: int, step_token_budget: int, seed: int
) -> None:
    simulation = drawn(tenants, num_blocks, slots, step_token_budget, seed, steps=220)
    target(max(simulation.worst, simulation.worst_interval))  # what comes near the bound is tried further
    check_promises(simulation)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, derandomize=False)
@given(loads, *sizes)
def test_no_search_for_the_worst_load_passes_the_bound(
    tenants: list[dict], num_blocks: int, slots: int, step_token_budget: int, seed: int
) -> None:
    simulation = drawn(tenants, num_blocks, slots, step_token_budget, seed, steps=500)
    target(simulation.worst, label="counters")
    target(simulation.worst_interval, label="service")
    target(simulation.reclaimed_tokens / max(1, simulation.computed_tokens), label="reclaimed")
    check_promises(simulation)


small_loads = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([24, 48, None]), st.integers(1, 3), st.integers(1, 24)),
    min_size=2,
    max_size=3,
)


@settings(max_examples=12, deadline=None)
@given(small_loads, st.sampled_from([2, 3]), st.integers(0, 99))
def test_a_head_waits_no_longer_than_the_bounds_and_the_longest_answer_explain(
    tenants: list[tuple], slots: int, seed: int
) -> None:
    shares = {f"t{number}": Share(cap_tokens=cap, weight=weight) for number, (weight, cap, _, _) in enumerate(tenants)}
    simulation = Simulation(shares, seed=seed, num_blocks=12, max_num_seqs=slots, step_token_budget=16)

    def feed(step: int) -> None:
        for name, (_, _, depth, output) in zip(shares, tenants, strict=True):
            simulation.backlog(name, depth, (1, 8), (1, min(output, 16)))

    simulation.run(600, feed)
    for name in shares:
        assert simulation.longest_turn[name] <= simulation.wait_bound(name, longest_prompt=8, longest_output=16)
    assert min(simulation.service.get(name, 0.0) for name in shares) > 0


@pytest.mark.parametrize(
    ("num_blocks", "steps", "within"), [(2000, 1500, 0.01), (200, 3000, 0.05)], ids=["memory enough", "memory short"]
)
def test_backlogged_tenants_share_by_weight(num_blocks: int, steps: int, within: float) -> None:
    weights = {"a": 1, "b": 2, "c": 3, "d": 4}
    simulation = Simulation(
        {name: Share(weight=weight) for name, weight in weights.items()},
        num_blocks=num_blocks,
        max_num_seqs=32,
        step_token_budget=256,
    )

    def feed(step: int) -> None:
        for name in weights:
            simulation.backlog(name, 4, (16, 200), (8, 100))

    simulation.run(steps, feed)
    for name, weight in weights.items():
        assert simulation.share(name) == pytest.approx(weight / 10, rel=within)
    assert simulation.worst <= 1


def staggered(slots: int, **settings: Any) -> tuple[float, float]:
    """Return how far a tenant gets ahead in units, and its bound of commitments: sequences that end one after another
    just as they fill the cap hand their blocks to the rest, while a heavy tenant waits for slots, two of its in line.
    """
    cap_tokens = 1600
    simulation = Simulation(
        {"i": Share(cap_tokens=cap_tokens), "j": Share(weight=1000)},
        num_blocks=4000,
        max_num_seqs=slots,
        step_token_budget=32,
        max_model_len=2000,
        return_credit_steps=0,
        backlog_step_fraction=1.0,
        **settings,
    )
    i, j = simulation.driver.tenant("i"), simulation.driver.tenant("j")
    for number in range(slots):
        simulation.submit("i", 1, max(1, cap_tokens // (slots - number) - 9))
    for _ in range(2):
        simulation.submit("i", 1, cap_tokens - 1)
    lead_units = 0.0
    for step in range(cap_tokens):
        if step >= 2:
            simulation.backlog("j", 2, 1, 300)
        simulation.driver.step()
        simulation.look()
        if i.eligible and j.eligible:
            lead_units = max(lead_units, i.counter - j.counter)
    assert simulation.worst <= 1
    return lead_units, simulation.bound(i, commitments=True)


@pytest.mark.parametrize("slots", [4, 8, 16, pytest.param(31, marks=pytest.mark.slow)])
def test_staggered_sequences_pass_the_bound_of_commitments_unless_they_give_rows_to_who_has_fewer(
    slots: int,
) -> None:
    lead_units, _ = staggered(slots)
    # Each step the heavy tenant takes a row for each of its two: of all rows, two less are charged than before.
    config = EngineConfig(num_blocks=4000, max_num_seqs=slots, step_token_budget=32)
    rows_charged = sum(range(slots, 0, -2))
    assert lead_units <= config.step_units + config.turn_gap_units + config.output_weight * rows_charged
    lead_units, bound_units = staggered(slots, pause_limit=0)
    assert 1 < lead_units / bound_units <= harmonic(slots)
