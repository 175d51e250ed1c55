"""Which calls a benchmark makes."""

from collections import Counter
from pathlib import Path

import pytest
import workloads
from hypothesis import given
from hypothesis import strategies as st
from workloads import NAMES, PREFIX_TOKENS, REPLAY_S, SLOWDOWN, expanded, read_calls, sliced, workload

from dataplane.sim.workload import Call

SPAN_S = REPLAY_S / SLOWDOWN
TRACE = [Call(number, number * SPAN_S / 10, 800, 400) for number in range(45)]


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_calls_and_another_one_others(name: str) -> None:
    drawn = [workload(name, seed, TRACE) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1]
    assert [one.prompt for one in drawn[0].requests] != [one.prompt for one in drawn[2].requests]


@pytest.mark.parametrize(("name", "share"), [("F-hit", 0.98), ("F-miss", 0.0), ("F-shared", 0.90), ("F-distinct", 0.0)])
def test_so_much_of_a_prompt_is_common_to_all_and_the_warm_up_has_brought_it(name: str, share: float) -> None:
    made = workload(name, 0)
    prompts = [one.prompt for one in [*made.requests, made.warm_up[-1]]]
    shared = {tuple(prompt[:PREFIX_TOKENS]) for prompt in prompts}
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    if share:
        assert len(shared) == 1
        assert PREFIX_TOKENS / len(prompts[0]) == pytest.approx(share, abs=0.01)
    else:
        assert len(shared) == len(prompts)


def test_calls_of_a_trace_are_slower_and_shorter_by_the_factors_that_are_told() -> None:
    first, second, *_ = sliced(TRACE, 0, REPLAY_S)
    assert second.arrival_s - first.arrival_s == pytest.approx(SPAN_S / 10 * SLOWDOWN)
    assert (first.prompt_tokens, first.output_tokens) == (100, 50)


@given(calls=st.lists(st.tuples(st.floats(0, 400), st.integers(0, 20_000), st.integers(0, 5_000)), min_size=1))
def test_each_round_replays_the_next_slice_and_no_call_is_too_long_or_late(calls: list[tuple[float, int, int]]) -> None:
    trace = [Call(number, at_s, *lengths) for number, (at_s, *lengths) in enumerate(sorted(calls))]
    slices = max(1, int(trace[-1].arrival_s // SPAN_S))
    found = [call for number in range(slices) for call in sliced(trace, number, REPLAY_S)]
    assert [call.number for call in found] == [call.number for call in trace if call.arrival_s // SPAN_S < slices]
    assert sliced(trace, slices, REPLAY_S) == sliced(trace, 0, REPLAY_S)
    for call in found:
        assert 0 <= call.arrival_s <= REPLAY_S
        assert 2 <= call.prompt_tokens <= workloads.LONGEST_PROMPT_TOKENS
        assert 2 <= call.output_tokens <= workloads.LONGEST_OUTPUT_TOKENS


def test_a_whole_trace_is_read_with_its_own_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,14050,44\n")
    assert read_calls(path) == [Call(0, 0.0, 14050, 44)]


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_workload_is_the_same_kind_of_calls(name: str) -> None:
    tiny, whole = workload(name, 0, TRACE, tiny=True), workload(name, 0, TRACE)
    assert tiny.callers == whole.callers
    assert [one.prompt for one in tiny.requests] == [one.prompt for one in whole.requests][: len(tiny.requests)]
    assert sum(one.output_tokens for one in tiny.requests) <= 32


def test_three_tenants_call_below_their_share_and_one_at_ten_times_its_own() -> None:
    flooded, alone, first = (workload(name, 0, peak_per_s=20.0) for name in ("E-flood", "E-alone", "E-first"))
    calls = Counter(one.tenant for one in [*flooded.requests, *flooded.flood])
    share = 5.0 * 30
    assert calls == {"tenant-1": 0.8 * share, "tenant-2": 0.8 * share, "tenant-3": 0.8 * share, "flooding": 10 * share}
    assert (alone.requests, alone.flood) == (flooded.requests, [])
    assert {one.tenant for one in [*first.requests, *first.flood]} == {"all"}
    assert [one.at_s for one in first.flood] == [one.at_s for one in flooded.flood]


def test_essays_are_one_call_in_twenty_beside_the_same_short_ones() -> None:
    mixed, alone = workload("E-essays", 0, peak_per_s=10.0), workload("E-short", 0, peak_per_s=10.0)
    assert (alone.requests, alone.flood) == (mixed.requests, [])
    assert len(mixed.requests) / len(mixed.flood) == pytest.approx(19, rel=0.1)
    assert max(one.output_tokens for one in mixed.requests) < min(one.output_tokens for one in mixed.flood)
    calls = [*mixed.requests, *mixed.flood]
    assert sum(one.output_tokens for one in calls) == pytest.approx(0.8 * 10.0 * 32 * 60, rel=0.1)


def test_a_workload_that_is_none_is_refused_with_those_there_are() -> None:
    assert expanded("A,F") == ["A", "F-hit", "F-miss", "F-shared", "F-distinct"]
    assert expanded("E") == ["E-peak", "E-alone", "E-flood", "E-first", "E-dedicated", "E-short", "E-essays"]
    with pytest.raises(ValueError, match="no workload X; there are A, B, C"):
        expanded("A,X")
    with pytest.raises(ValueError, match="--trace"):
        workload("D", 0)
