"""A fleet that a module's tests share: on scripted workers, at rest before each of them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_double import ControlDouble
from fleet_harness import ON_FAKES, FleetProcess, Home, living, processes_of

from dataplane.contracts.replica import ReplicaState
from stack.redis import Redis


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="pgd-", dir="/tmp") as folder:
        yield Home(Path(folder))


@pytest.fixture(scope="module")
def control() -> Iterator[ControlDouble]:
    with ControlDouble() as double:
        yield double


@pytest.fixture(scope="module")
def command() -> tuple[str, ...]:
    """What the module's fleet is started with."""
    return ON_FAKES


@pytest.fixture(scope="module")
def shared_fleet(
    home: Home, control: ControlDouble, command: tuple[str, ...], redis_server: Redis
) -> Iterator[FleetProcess]:
    with FleetProcess(home, redis_server.url, control, command) as process:
        yield process
    assert processes_of(home) == []


@pytest.fixture
def fleet(shared_fleet: FleetProcess) -> FleetProcess:
    """The module's fleet, at rest: one warm idle process, an empty catalog, nobody waits, no reports."""
    shared_fleet.call()
    shared_fleet.publish(versions=[])
    shared_fleet.wait(lambda table: living(table) == [ReplicaState.WARM_IDLE])
    shared_fleet.control.reports.clear()
    return shared_fleet
