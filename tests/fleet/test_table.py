import asyncio

import pytest

from dataplane.contracts.replica import ReplicaReport, ReplicaState
from dataplane.fleet.table import Table

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def row(state: ReplicaState) -> ReplicaReport:
    return ReplicaReport(replica_id="rep-1", node="n", state=state, cause="because", since_ms=1, socket="")


async def test_the_number_grows_with_changes_only() -> None:
    table = Table("n")
    start = table.latest.number
    assert table.publish([row(ReplicaState.READY)])
    assert not table.publish([row(ReplicaState.READY)])
    assert table.publish([row(ReplicaState.DRAINING)])
    assert table.latest.number == start + 2


async def test_a_waiter_is_answered_by_the_next_change_or_by_time() -> None:
    table = Table("n")
    number = table.latest.number
    assert (await table.newer_than(number, 0.01)).number == number
    waiters = [asyncio.create_task(table.newer_than(number, 10)) for _ in range(3)]
    await asyncio.sleep(0)
    table.publish([row(ReplicaState.READY)])
    assert [(await waiter).number for waiter in waiters] == [number + 1] * 3
    for other in (number, number + 1000):
        assert (await table.newer_than(other, 10)).number == number + 1
