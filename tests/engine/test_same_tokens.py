"""Whatever the engine does around a request, its tokens stay the same; and a check that would see if they did not."""

from typing import Any

import pytest
from engine_harness import Driver, reference
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.contracts.catalog import Share
from dataplane.engine.prefix_cache import PrefixCache
from dataplane.engine.scheduler import Scheduler

PROMPT = [5, 4, 3, 2, 1] * 13


def alone(max_tokens: int = 30, **engine: Any) -> list[int]:
    driver = Driver(**engine)
    request_id = driver.submit("acme", PROMPT, max_tokens, ignore_eos=True, seed=9)
    driver.run()
    assert driver.tokens[request_id] == reference(driver.requests[request_id])
    return driver.tokens[request_id]


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("chunk", [1, 7, 64, None])
def test_chunks_and_block_sizes_do_not_change_the_tokens(chunk: int | None, block_size: int) -> None:
    assert alone(prefill_chunk_tokens=chunk, block_size=block_size) == alone()


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 60), max_size=12), st.booleans(), st.sampled_from([1, 7, 64]))
def test_preemption_at_any_step_does_not_change_the_tokens(when: set[int], prefix_cache: bool, chunk: int) -> None:
    driver = Driver(prefix_cache=prefix_cache, prefill_chunk_tokens=chunk)
    request_id = driver.submit("acme", PROMPT, 30, ignore_eos=True)
    for step in range(4_000):
        if not driver.engine.has_work:
            break
        if step in when and request_id in driver.scheduler.running:
            driver.preempt(request_id)
        driver.step()
        driver.check()
    driver.check_answers()
    assert len(driver.tokens[request_id]) == 30


def test_a_hot_prefix_gives_the_tokens_of_a_cold_one_and_computes_less() -> None:
    driver = Driver()
    cold = driver.submit("acme", PROMPT, 20, ignore_eos=True, seed=3)
    driver.run()
    hot = driver.submit("acme", PROMPT, 20, ignore_eos=True, seed=3)
    driver.run()
    assert driver.tokens[hot] == driver.tokens[cold]
    assert driver.runner.computed[hot] == driver.runner.computed[cold] - 64
    assert driver.ends[hot].cached_tokens == 64
    assert driver.ends[cold].cached_tokens == 0
    assert driver.engine.load().prefix_cache_hits_tokens == 64


def test_sequences_that_run_together_share_the_blocks_of_a_common_prefix() -> None:
    driver = Driver()
    first = driver.submit("acme", PROMPT, 30, ignore_eos=True)
    for _ in range(3):
        driver.step()
    second = driver.submit("acme", [*PROMPT, 1], 30, ignore_eos=True)
    driver.step()
    shared = set(driver.sequence(first).table.block_ids) & set(driver.sequence(second).table.block_ids)
    assert len(shared) == 8
    driver.run()
    driver.check_answers()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_neighbours_and_their_aborts_do_not_change_the_tokens(data: st.DataObject) -> None:
    driver = Driver({"acme": Share(weight=2)}, num_blocks=24, max_num_seqs=4, step_token_budget=16)
    subject = driver.submit("acme", PROMPT, 30, ignore_eos=True, seed=9)
    for _ in range(40):
        if data.draw(st.booleans()):
            common = data.draw(st.integers(0, 65))
            driver.submit(data.draw(st.sampled_from(["acme", "evil"])), [*PROMPT[:common], 9], 20, seed=1)
        if data.draw(st.booleans()) and len(driver.requests) > 1:
            driver.abort(data.draw(st.sampled_from(sorted(set(driver.requests) - {subject}))))
        driver.step()
    driver.run()
    driver.check_answers()
    assert driver.tokens[subject] == alone()


# The inverse: each rule that keeps the tokens the same is broken once, and the checks above must see it.


def one_salt(self: PrefixCache, tenant_id: str) -> bytes:
    return b"one salt for all"


def any_owner(self: PrefixCache, sequence: Any) -> list[Any]:
    num_blocks = (sequence.num_tokens - 1) // 8
    self._extend_chain(sequence, num_blocks)
    return [self._pool.index[digest] for digest in sequence.chain[:num_blocks] if digest in self._pool.index]


@pytest.mark.parametrize(("broken", "stolen_tokens"), [(["_seed"], 0), (["match"], 0), (["_seed", "match"], 64)])
def test_a_stranger_hits_only_if_the_salt_and_the_check_of_the_owner_are_both_gone(
    monkeypatch: pytest.MonkeyPatch, broken: list[str], stolen_tokens: int
) -> None:
    for name in broken:
        monkeypatch.setattr(PrefixCache, name, {"_seed": one_salt, "match": any_owner}[name])
    driver = Driver()
    driver.submit("acme", PROMPT, 4)
    driver.run()
    thief = driver.submit("evil", PROMPT, 4)
    driver.run()
    assert driver.ends[thief].cached_tokens == stolen_tokens


def test_a_cache_that_compares_too_little_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: PrefixCache, sequence: Any) -> list[Any]:
        return list(self._pool.index.values())[: (sequence.num_tokens - 1) // 8]

    driver = Driver()
    driver.submit("acme", PROMPT, 8, ignore_eos=True)
    driver.run()
    monkeypatch.setattr(PrefixCache, "match", careless)
    driver.submit("acme", PROMPT[::-1], 8, ignore_eos=True)
    driver.run()
    with pytest.raises(AssertionError):
        driver.check_answers()


def test_a_resume_that_skips_what_was_lost_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    admit = Scheduler._admit

    def admit_and_skip(self: Scheduler, head: Any, need: Any, *, prepaid: bool, step: Any) -> bool:
        admitted = admit(self, head, need, prepaid=prepaid, step=step)
        head.num_computed_tokens = max(0, head.high_water_tokens - 1)
        return admitted

    monkeypatch.setattr(Scheduler, "_admit", admit_and_skip)
    driver = Driver(prefix_cache=False)
    request_id = driver.submit("acme", PROMPT, 8, ignore_eos=True)
    for _ in range(4):
        driver.step()
    driver.preempt(request_id)
    with pytest.raises(AssertionError, match="nobody computed"):
        driver.run()
