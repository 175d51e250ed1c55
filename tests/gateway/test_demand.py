from hypothesis import given
from hypothesis import strategies as st

from dataplane.gateway.demand import Ledger


def tell(ledger: Ledger) -> dict[str, int]:
    message = ledger.message()
    ledger.told(message)
    return message


def test_a_deployment_that_is_no_longer_waited_for_is_told_once_with_zero() -> None:
    ledger = Ledger()
    assert not ledger.is_due
    ledger.set("dep", 1)
    assert ledger.is_urgent
    assert tell(ledger) == {"dep": 1}
    ledger.set("dep", 3)
    assert (ledger.is_urgent, ledger.is_due) == (False, True), "more of the same can wait for its second"
    assert tell(ledger) == {"dep": 3}
    ledger.set("dep", 0)
    assert tell(ledger) == {"dep": 3}, "the most since the last time"
    assert (ledger.is_urgent, ledger.is_due) == (False, True)
    assert tell(ledger) == {"dep": 0}
    assert not ledger.is_due
    assert ledger.message() == {}


def test_one_who_did_not_wait_at_all_is_told_too() -> None:
    ledger = Ledger()
    ledger.set("dep", 1)
    ledger.set("dep", 0)
    assert ledger.is_urgent
    assert tell(ledger) == {"dep": 1}
    ledger.set("dep", 1)
    ledger.set("dep", 0)
    assert tell(ledger) == {"dep": 1}, "again, before the zero was told"
    assert tell(ledger) == {"dep": 0}


def test_what_came_while_the_message_was_on_its_way_is_told_next() -> None:
    ledger = Ledger()
    ledger.set("dep", 1)
    message = ledger.message()
    ledger.set("dep", 5)
    ledger.set("other", 1)
    ledger.set("dep", 0)
    ledger.told(message)
    assert ledger.is_urgent
    assert tell(ledger) == {"dep": 5, "other": 1}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)) | st.none()))
def test_the_fleet_ends_up_knowing_what_is_waited_for(changes) -> None:
    ledger = Ledger()
    waiting: dict[str, int] = {}
    known: dict[str, int] = {}
    for change in changes:
        if change is None:
            known = tell(ledger)
        else:
            waiting[change[0]] = change[1]
            ledger.set(*change)
    for _ in range(3):
        if ledger.is_due:
            known = tell(ledger)
    assert {name: n for name, n in known.items() if n} == {name: n for name, n in waiting.items() if n}
    assert ledger.is_due == any(waiting.values())
