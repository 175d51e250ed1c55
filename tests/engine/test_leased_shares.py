"""An engine that holds a part of a tenant's share: what waits for more of it, and what a moving part leaves alone."""

import pytest
from engine_harness import Driver

from dataplane.contracts.catalog import Share
from dataplane.contracts.leases import Lease
from dataplane.engine.intake import Refusal

SHARES = {"acme": Share(guarantee_tokens=64, cap_tokens=256)}  # 8 and 32 blocks of 8


def driver(**lease: int) -> Driver:
    made = Driver(SHARES, num_blocks=64)
    made.engine.set_tenants(SHARES, {"acme": Lease(**({"guarantee_blocks": 4, "cap_blocks": 16} | lease))})
    return made


def lease(made: Driver, cap_blocks: int, kept_cap_blocks: int = 0) -> None:
    made.engine.set_tenants(SHARES, {"acme": Lease(4, cap_blocks, 0, kept_cap_blocks)})


def test_what_the_share_holds_but_not_the_part_waits_for_more_and_the_engine_stands_still_until_then() -> None:
    made = driver()
    request_id = made.submit("acme", list(range(160)), max_tokens=40, ignore_eos=True)
    for _ in range(3):
        assert made.step() == []
    assert made.runner.steps == 0
    (load,) = made.engine.tenant_loads()
    assert (load.cap_blocks, load.num_waiting, load.head_tokens) == (16, 1, 160)
    lease(made, 25)
    made.run()
    assert len(made.tokens[request_id]) == 40
    made.check_answers()


def test_what_the_share_as_a_whole_cannot_hold_is_refused_with_its_numbers() -> None:
    with pytest.raises(Refusal, match="at most 256"):
        driver().submit("acme", [1] * 200, max_tokens=57)


def test_a_sequence_that_outgrows_the_part_goes_on_when_there_is_more() -> None:
    made = driver(cap_blocks=4)
    request_id = made.submit("acme", [1] * 24, max_tokens=40, ignore_eos=True)
    for _ in range(30):
        made.step()
    assert request_id not in made.ends
    assert made.sequence(request_id).num_preemptions == 1
    lease(made, 8)
    made.run()
    made.check_answers()


def test_a_part_that_moves_leaves_what_is_in_use_and_the_next_admission_obeys() -> None:
    made = driver()
    running = made.submit("acme", list(range(80)), max_tokens=8, ignore_eos=True)
    made.step()
    lease(made, 4, kept_cap_blocks=16)
    (load,) = made.engine.tenant_loads()
    assert load.cap_blocks == load.owned_blocks + load.num_running
    late = made.submit("acme", list(range(100, 124)), max_tokens=4, ignore_eos=True)
    made.step()
    assert not made.sequence(late).is_running
    while running not in made.ends:
        made.step()
    lease(made, 4, kept_cap_blocks=16)
    (load,) = made.engine.tenant_loads()
    assert load.cap_blocks == 4, "nothing of it is in use any more"
    made.run()
    assert made.engine.load().num_preemptions == 0
    made.check_answers()


def test_what_a_part_keeps_while_in_use_is_never_more_than_it_was() -> None:
    made = driver()
    made.submit("acme", [1] * 120, max_tokens=8, ignore_eos=True)
    made.step()
    lease(made, 2, kept_cap_blocks=10)
    (load,) = made.engine.tenant_loads()
    assert load.cap_blocks == 10
    assert load.owned_blocks <= 10


def test_a_lowered_share_is_obeyed_by_the_next_admission_and_takes_back_what_is_above_it() -> None:
    made = driver()
    first, second = (made.submit("acme", [n] * 40, max_tokens=20, ignore_eos=True) for n in (1, 2))
    made.step()
    lease(made, 8)
    (load,) = made.engine.tenant_loads()
    assert load.owned_blocks <= load.cap_blocks == 8
    assert made.sequence(first).is_running, "the newest gives way"
    third = made.submit("acme", [3] * 24, max_tokens=4, ignore_eos=True)
    made.step()
    assert not made.sequence(second).is_running
    assert not made.sequence(third).is_running
    made.run()
    made.check_answers()


def test_a_guarantee_stays_for_what_it_protects_and_leases_beyond_the_pool_are_refused() -> None:
    made = driver(guarantee_blocks=8)
    made.submit("acme", list(range(40)), max_tokens=8, ignore_eos=True)
    made.step()
    made.engine.set_tenants(SHARES, {"acme": Lease(2, 16, kept_guarantee_blocks=8)})
    (load,) = made.engine.tenant_loads()
    assert load.guarantee_blocks == load.owned_blocks == 5
    whole = {"acme": Share(guarantee_tokens=640)}
    with pytest.raises(ValueError, match="guarantees add up to 640"):
        made.engine.set_tenants(whole)
    with pytest.raises(ValueError, match="guarantees add up to 520"):
        made.engine.set_tenants(whole, {"acme": Lease(2, None, kept_guarantee_blocks=65)})
    made.engine.set_tenants(whole, {"acme": Lease(2, None, kept_guarantee_blocks=8)})
