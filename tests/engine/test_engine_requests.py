"""One request at a time: what is refused, how it ends, and what a failure does to its neighbours."""

import pytest
from engine_harness import EOS, Driver, NullRunner, reference
from structlog.testing import capture_logs

from dataplane.contracts.catalog import Share
from dataplane.contracts.errors import Code
from dataplane.contracts.generation import FinishReason, Submit
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.block_pool import IntegrityError
from dataplane.engine.config import EngineConfig
from dataplane.engine.engine import Engine
from dataplane.engine.intake import Refusal


def refusal(driver: Driver, tenant_id: str, prompt: list[int], max_tokens: int = 8, **sampling: object) -> Refusal:
    with pytest.raises(Refusal) as caught:
        driver.submit(tenant_id, prompt, max_tokens, **sampling)
    assert not driver.engine.has_work
    return caught.value


def test_a_request_above_its_cap_is_refused_with_needed_and_available_in_tokens_and_blocks() -> None:
    answer = refusal(Driver({"acme": Share(cap_tokens=40)}), "acme", [1] * 30, 20)
    assert answer.code is Code.REQUEST_TOO_LARGE_FOR_BUDGET
    assert "needs 50 tokens" in answer.message
    assert "7 blocks of 8" in answer.message
    assert "40 (5 blocks) are available" in answer.message


def test_a_request_above_the_pool_is_refused() -> None:
    assert refusal(Driver(num_blocks=4), "acme", [1] * 30, 20).code is Code.REQUEST_TOO_LARGE_FOR_BUDGET


def test_a_request_above_the_context_is_refused_with_both_numbers() -> None:
    answer = refusal(Driver(max_model_len=40), "acme", [1] * 30, 20)
    assert answer.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert "50 tokens" in answer.message
    assert "holds 40" in answer.message


@pytest.mark.parametrize(
    ("prompt", "sampling", "code"),
    [
        ([], {}, Code.INVALID_REQUEST),
        ([-1], {}, Code.INVALID_REQUEST),
        ([2**31], {}, Code.INVALID_REQUEST),
        ([1], {"max_tokens": 0}, Code.INVALID_PARAMETER),
        ([1], {"max_tokens": 4, "min_tokens": 5}, Code.INVALID_PARAMETER),
        ([1], {"min_tokens": -1}, Code.INVALID_PARAMETER),
    ],
)
def test_nonsense_is_refused(prompt: list[int], sampling: dict, code: Code) -> None:
    assert refusal(Driver(), "acme", prompt, **sampling).code is code


def test_an_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    driver = Driver()
    request_id = driver.submit("acme", [1, 2], 3)
    with pytest.raises(Refusal, match="in use"):
        driver.engine.submit(Submit(request_id, "acme", [1], SamplingParams(max_tokens=1)))
    driver.run()
    driver.check_answers()


def test_a_full_queue_refuses_its_tenant_and_nobody_else() -> None:
    driver = Driver(queue_limit_per_tenant=2)
    driver.submit("acme", [1])
    driver.submit("acme", [2])
    with pytest.raises(Refusal) as caught:
        driver.submit("acme", [3])
    assert caught.value.code is Code.QUEUE_FULL
    driver.submit("other", [3])
    driver.run()
    driver.check_answers()


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 7},
        {"num_blocks": 0},
        {"max_num_seqs": 65},
        {"prefill_chunk_tokens": 0},
    ],
)
def test_an_engine_that_could_not_run_is_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match=r"must be|allowed are|must be able"):
        Driver(**settings)


def test_guarantees_above_the_pool_refuse_the_start_and_leave_a_running_engine_as_it_was() -> None:
    with pytest.raises(ValueError, match="add up to"):
        Driver({"acme": Share(guarantee_tokens=10_000)})
    driver = Driver({"acme": Share(guarantee_tokens=64)})
    with pytest.raises(ValueError, match="add up to"):
        driver.engine.set_tenants({"acme": Share(guarantee_tokens=10_000)})
    assert driver.engine.tenant_loads()[0].guarantee_blocks == 8


def test_the_token_that_stops_a_sequence_is_its_last() -> None:
    driver = Driver()
    seed = next(
        s for s in range(1000) if EOS in reference(_request(seed=s))[:-1] or reference(_request(seed=s))[-1] == EOS
    )
    request_id = driver.submit("acme", [1, 2, 3], 40, seed=seed)
    driver.run()
    assert driver.ends[request_id].finish_reason is FinishReason.STOP
    assert driver.tokens[request_id][-1] == EOS
    assert EOS not in driver.tokens[request_id][:-1]


def _request(seed: int) -> Submit:
    return Submit("r", "acme", [1, 2, 3], SamplingParams(max_tokens=40, seed=seed))


def test_no_stop_token_comes_before_min_tokens() -> None:
    stops = tuple(range(0, 50, 2))
    driver = Driver()
    for seed in range(20):
        driver.submit("acme", [seed], 30, min_tokens=10, stop_token_ids=stops, seed=seed)
    driver.run()
    driver.check_answers()
    for tokens in driver.tokens.values():
        assert len(tokens) >= 10
        assert all(token % 2 and token != EOS for token in tokens[:9])


def test_an_aborted_request_frees_its_blocks_at_once_and_says_no_more() -> None:
    driver = Driver(prefix_cache=False)
    running = driver.submit("acme", [1] * 30, 30, ignore_eos=True)
    driver.step()
    assert driver.engine.load().owned_blocks == 4
    assert driver.abort(running)
    assert driver.engine.load().free_blocks == 64
    assert not driver.engine.has_work
    assert not driver.abort(running)
    assert not driver.abort("never heard of")


@pytest.mark.parametrize("how", ["raises_for", "fails_for"])
def test_only_the_offender_fails(how: str) -> None:
    driver = Driver()
    good = [driver.submit("acme", [n] * 20, 10, ignore_eos=True) for n in range(3)]
    bad = driver.submit("acme", [9] * 20, 10)
    getattr(driver.runner, how).add(bad)
    driver.run()
    assert driver.ends[bad].finish_reason is FinishReason.ERROR
    assert driver.ends[bad].error_code == "request_failed"
    assert driver.ends[bad].error_message
    assert all(driver.ends[request_id].finish_reason is FinishReason.LENGTH for request_id in good)
    driver.check_answers()
    assert driver.engine.load().failed_rows == 1


def test_what_a_failed_request_computed_is_not_cached() -> None:
    driver = Driver()
    bad = driver.submit("acme", [9] * 40, 10)
    driver.runner.fails_for.add(bad)
    driver.run()
    assert driver.engine.load().free_blocks == 64


def test_the_text_of_an_exception_does_not_reach_the_caller() -> None:
    driver = Driver()
    bad = driver.submit("acme", [9], 10)
    driver.runner.raises_for.add(bad)
    driver.run()
    assert "raised" not in driver.ends[bad].error_message


def test_no_token_of_a_failed_request_reaches_the_log() -> None:
    driver = Driver()
    driver.runner.raises_for.add(driver.submit("acme", [987_654_321], 10))
    with capture_logs() as events:
        driver.run()
    assert {event["event"] for event in events} == {"step_failed", "row_failed"}
    assert "987654321" not in str(events)
    # A renderer that is handed the exception itself may print local variables: token ids among them.
    assert all("exc_info" not in event for event in events)


class LyingRunner(NullRunner):
    """Breaks the contract between engine and model."""

    def __init__(self, answer: list) -> None:
        super().__init__()
        self.answer = answer

    def execute(self, rows):
        return self.answer


@pytest.mark.parametrize("answer", [[], [None], [1, 2]])
def test_an_answer_that_does_not_fit_the_rows_fails_the_request_and_not_the_books(answer: list) -> None:
    driver = Driver(runner=LyingRunner(answer))
    request_id = driver.submit("acme", [1], 2)
    driver.run()
    assert driver.ends[request_id].finish_reason is FinishReason.ERROR
    driver.engine.check_integrity()


def test_lowering_a_cap_preempts_the_newest_and_ends_what_can_never_fit_again() -> None:
    driver = Driver()
    old = driver.submit("acme", [1] * 30, 20, ignore_eos=True)
    new = driver.submit("acme", [2] * 30, 20, ignore_eos=True)
    for _ in range(4):
        driver.step()
    driver.engine.set_tenants({"acme": Share(cap_tokens=56)})
    driver.check()
    assert set(driver.scheduler.running) == {old}
    driver.run()
    driver.check_answers()
    assert driver.ends[new].finish_reason is FinishReason.LENGTH
    large = driver.submit("acme", [1] * 30, 20, ignore_eos=True)
    waiting = driver.submit("acme", [2] * 30, 20, ignore_eos=True)
    driver.step()
    driver.engine.set_tenants({"acme": Share(cap_tokens=24)})
    driver.check()
    driver.run()
    for request_id in (large, waiting):
        assert driver.ends[request_id].finish_reason is FinishReason.ERROR
        assert driver.ends[request_id].error_code == "request_too_large_for_budget"
        assert "24 (3 blocks) are available" in driver.ends[request_id].error_message


def test_a_sequence_that_outgrows_a_lowered_cap_keeps_its_tokens_and_ends_with_the_reason() -> None:
    driver = Driver()
    request_id = driver.submit("acme", [1] * 10, 40, ignore_eos=True)
    driver.step()
    driver.engine.set_tenants({"acme": Share(cap_tokens=24)})
    driver.run()
    assert driver.ends[request_id].error_code == "request_too_large_for_budget"
    assert len(driver.tokens[request_id]) == 15
    driver.check_answers()


def test_unlisted_tenants_are_forgotten_when_nothing_of_them_is_left() -> None:
    driver = Driver({"listed": Share()}, prefix_cache=False)
    for number in range(50):
        driver.submit(f"stranger{number}", [1], 1)
        driver.run()
    driver.submit("listed", [1], 200)
    driver.run()
    assert len(driver.engine.tenant_loads()) < 10
    assert "listed" in {load.tenant_id for load in driver.engine.tenant_loads()}


def test_the_figures_add_up() -> None:
    driver = Driver({"acme": Share(guarantee_tokens=16, weight=3)})
    driver.submit("acme", [1] * 20, 5, ignore_eos=True)
    driver.submit("other", [2] * 20, 5, ignore_eos=True)
    driver.step()
    dump = driver.engine.dump()
    assert dump.load.num_running == 2
    assert [(load.tenant_id, load.weight, load.owned_blocks) for load in dump.tenants] == [
        ("acme", 3, 3),
        ("other", 1, 3),
    ]
    assert {str(row["state"]) for row in dump.sequences} == {"running"}
    driver.run()
    load = driver.engine.load()
    assert (load.prompt_tokens, load.generation_tokens) == (40, 10)
    # 20 of prompt at 1 and 5 of output at 2, divided by the weight
    assert [load.service for load in driver.engine.tenant_loads()] == pytest.approx([10, 30])
    assert [load.served_units for load in driver.engine.tenant_loads()] == [30, 30]
    assert [load.peak_owned_blocks for load in driver.engine.tenant_loads()] == [3, 3]
    assert [load.prefix_queries_tokens for load in driver.engine.tenant_loads()] == [20, 20]
    driver.submit("acme", [1] * 20, 1)
    driver.run()
    again = driver.engine.tenant_loads()[0]
    assert (again.prefix_queries_tokens, again.prefix_hits_tokens) == (40, 16)


def test_a_step_is_charged_when_it_is_done_and_nothing_is_left_for_the_end() -> None:
    driver = Driver({"acme": Share()}, step_token_budget=8)
    driver.submit("acme", [1] * 20, 3, ignore_eos=True)
    counters = []
    for _ in range(5):
        driver.step()
        counters.append(driver.counter("acme"))
    assert counters == [8, 16, 22, 24, 26]


def test_a_tenant_is_told_what_it_suffered_and_why() -> None:
    driver = Driver({"acme": Share(cap_tokens=80), "other": Share()}, num_blocks=12, prefix_cache=False)
    for tenant in ("other", "other", "acme"):
        driver.submit(tenant, [1] * 16, 40, ignore_eos=True)
    for _ in range(12):
        driver.step()
    driver.engine.set_tenants({"acme": Share(cap_tokens=16), "other": Share()})
    driver.run()
    suffered = {load.tenant_id: load for load in driver.engine.tenant_loads()}
    assert suffered["other"].preemptions["growth"] >= 1
    assert suffered["other"].within_guarantee_preemptions == 0
    assert driver.engine.load().num_preemptions == sum(sum(load.preemptions.values()) for load in suffered.values())


def test_service_elsewhere_is_a_number_of_a_tenant() -> None:
    driver = Driver()
    for units in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"acme.*must be 0 or more"):
            driver.engine.add_service({"other": 5.0, "acme": units})
    assert driver.engine.tenant_loads() == []
    driver.engine.add_service({"acme": 1e9})
    assert driver.counter("acme") == driver.config.service_debt_units
    driver.submit("acme", [1], 1)
    driver.run()
    assert driver.ends, "a debt stops nobody who is alone"


def test_falling_idle_with_a_block_missing_is_an_error() -> None:
    driver = Driver()
    driver.submit("acme", [1], 1)
    driver.pool.allocate(driver.tenant("acme").budget, 1)
    with pytest.raises(IntegrityError, match="idle with 1 blocks owned"):
        driver.run()


def test_a_block_held_by_nobody_is_found() -> None:
    driver = Driver()
    driver.submit("acme", [1] * 9, 5, ignore_eos=True)
    driver.step()
    driver.pool.blocks[next(iter(driver.scheduler.running.values())).table.block_ids[0]].ref_count += 1
    with pytest.raises(IntegrityError, match="sequences hold 2 blocks"):
        driver.engine.check_integrity()


def test_an_engine_takes_its_shares_by_name() -> None:
    config = EngineConfig(num_blocks=4, max_num_seqs=1)
    engine = Engine(config, NullRunner(), {"acme": Share()}, salt_secret=b"", version_digest="", eos_token_ids=())
    assert [load.tenant_id for load in engine.tenant_loads()] == ["acme"]
