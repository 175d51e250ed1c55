"""A tenant's salt is changed: what it has cached is gone at once, what runs goes on, and nobody else notices."""

from engine_harness import Driver

from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import FinishReason

PROMPT = [5, 4, 3, 2, 1] * 13
CACHED_TOKENS = 64
"""Of the prompt's 65."""


def begin(driver: Driver, epoch: int) -> None:
    driver.engine.set_tenants({"acme": Share(cache_epoch=epoch), "evil": Share()})
    driver.check()


def hit_tokens(driver: Driver, tenant_id: str = "acme", prompt: list[int] = PROMPT) -> int:
    """Ask, and say how much of the prompt was found."""
    request_id = driver.submit(tenant_id, prompt, 2)
    driver.run()
    return driver.ends[request_id].cached_tokens


def decoding(driver: Driver) -> str:
    """Ask for a long answer and let it begin."""
    request_id = driver.submit("acme", PROMPT, 30, ignore_eos=True)
    while len(driver.tokens[request_id]) < 3:
        driver.step()
    return request_id


def test_a_new_epoch_empties_the_tenants_cache_at_once_and_no_other() -> None:
    driver = Driver()
    assert [hit_tokens(driver, name) for name in ("acme", "evil", "acme", "evil")] == [
        0,
        0,
        CACHED_TOKENS,
        CACHED_TOKENS,
    ]
    begin(driver, 1)
    cached = {load.tenant_id: load.cached_blocks for load in driver.engine.tenant_loads()}
    assert cached["acme"] == 0 < cached["evil"]
    assert [hit_tokens(driver, name) for name in ("acme", "evil", "acme")] == [0, CACHED_TOKENS, CACHED_TOKENS]


def test_new_shares_of_the_same_epoch_leave_the_cache_as_it_is() -> None:
    driver = Driver()
    begin(driver, 1)
    hit_tokens(driver)
    driver.engine.set_tenants({"acme": Share(weight=3, cache_epoch=1)})
    assert hit_tokens(driver) == CACHED_TOKENS


def test_what_runs_goes_on_and_leaves_nothing_to_be_found() -> None:
    driver = Driver()
    running = decoding(driver)
    begin(driver, 1)
    assert hit_tokens(driver) == 0
    driver.check_answers()
    assert driver.ends[running].finish_reason is FinishReason.LENGTH
    assert driver.engine.load().num_preemptions == 0
    longer = [*PROMPT, *driver.tokens[running], 1]
    assert hit_tokens(driver, prompt=longer) == CACHED_TOKENS, "what came after the new epoch, and no more"


def test_what_ran_before_and_is_preempted_computes_itself_again() -> None:
    driver = Driver()
    running = decoding(driver)
    begin(driver, 1)
    driver.preempt(running)
    driver.run()
    driver.check_answers()
    assert hit_tokens(driver) == 0


def test_an_epoch_that_was_before_finds_nothing_of_then() -> None:
    driver = Driver()
    hit_tokens(driver, prompt=[9, *PROMPT])
    decoding(driver)
    for epoch in (1, 0):
        begin(driver, epoch)
    assert hit_tokens(driver, prompt=[9, *PROMPT]) == 0
    assert hit_tokens(driver) == 0


def test_the_choices_of_a_request_that_ran_before_are_computed_all_the_same() -> None:
    driver = Driver()
    driver.submit_several("acme", PROMPT, 10, n=3, ignore_eos=True)
    driver.step()
    begin(driver, 1)
    driver.run()
    driver.check_answers()
