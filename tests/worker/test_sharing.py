"""Shares and service on their way from the fleet to the engine."""

from typing import cast

import pytest

from dataplane.contracts import probes
from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import CountService, EngineLoad, SetTenants
from dataplane.contracts.leases import Lease
from dataplane.contracts.replica import AddService, SetShares
from dataplane.worker.engine_client import EngineClient
from dataplane.worker.sharing import Sharing

LOAD = EngineLoad(0, 0, 0, 100, 100, 0, 0, 8, 0, 0, 0, 0, 0)


class EngineDouble:
    def __init__(self) -> None:
        self.load: EngineLoad | None = LOAD
        self.sent: list[SetTenants | CountService] = []

    def set_tenants(self, message: SetTenants) -> None:
        self.sent.append(message)

    def count_service(self, message: CountService) -> None:
        self.sent.append(message)


@pytest.fixture
def engine() -> EngineDouble:
    return EngineDouble()


@pytest.fixture
def sharing(engine: EngineDouble) -> Sharing:
    return Sharing(cast(EngineClient, engine))


def test_shares_are_passed_on_at_once_with_leases_and_number_and_with_those_of_probes(
    sharing: Sharing, engine: EngineDouble
) -> None:
    shares, leases = {"acme": Share(cap_tokens=800)}, {"acme": Lease(0, 50)}
    sharing.take(SetShares(shares, leases, 7))
    assert engine.sent == [SetTenants(shares | probes.TENANTS, leases, 7)]
    assert sharing.shares == shares


def test_what_comes_late_does_not_undo_what_came_after_it(sharing: Sharing, engine: EngineDouble) -> None:
    sharing.take(SetShares({"acme": Share(weight=2)}, number=5))
    sharing.take(SetShares({"acme": Share(weight=9)}, number=4))
    assert len(engine.sent) == 1
    assert sharing.shares == {"acme": Share(weight=2)}


def test_guarantees_are_held_to_what_is_leased_and_not_to_the_whole(sharing: Sharing, engine: EngineDouble) -> None:
    whole = {"acme": Share(guarantee_tokens=1600)}
    with pytest.raises(ValueError, match="guarantees add up to 1600"):
        sharing.take(SetShares(whole))
    sharing.take(SetShares(whole, {"acme": Lease(100, None)}))
    assert len(engine.sent) == 1


def test_before_a_model_is_loaded_nothing_is_taken(sharing: Sharing, engine: EngineDouble) -> None:
    engine.load = None
    with pytest.raises(ValueError, match="no model is loaded"):
        sharing.take(SetShares({}))


def test_of_service_elsewhere_only_what_is_new_is_counted_whatever_is_lost_late_or_repeated(
    sharing: Sharing, engine: EngineDouble
) -> None:
    for totals in ({"a": 5.0}, {"a": 5.0}, {"a": 12.0, "b": 3.0}, {"a": 7.0}, {"a": 12.0, "b": 4.0}):
        sharing.take(AddService(totals))
    assert engine.sent == [CountService({"a": 5.0}), CountService({"a": 7.0, "b": 3.0}), CountService({"b": 1.0})]


@pytest.mark.parametrize("total", [-1.0, float("inf"), float("nan")])
def test_service_that_is_no_number_is_refused(sharing: Sharing, engine: EngineDouble, total: float) -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        sharing.take(AddService({"a": total}))
    assert engine.sent == []
