import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.deployments.standing import DeploymentState, Standing, judge
from dataplane.contracts.replica import ReplicaReport, ReplicaState, Tier

AT_MS = 1_790_000_000_000


def row(state: ReplicaState, cause: str = "because", **fields) -> ReplicaReport:
    return ReplicaReport(replica_id="rep", node="n1", state=state, cause=cause, since_ms=AT_MS, socket="", **fields)


READY = row(ReplicaState.READY, "smoke passed")
ASLEEP = row(ReplicaState.ASLEEP, "idle for 60 s", idle=True, tier=Tier.ASLEEP, eta_ms=300)
WARM = row(ReplicaState.COLD, "idle for 600 s", idle=True, tier=Tier.WARM, eta_ms=900)
DISK = row(ReplicaState.COLD, "idle for a day", idle=True, tier=Tier.DISK, eta_ms=4_000)
STORE = row(ReplicaState.COLD, "idle for a week", idle=True, tier=Tier.STORE)
WAITING = row(ReplicaState.COLD, "waits for a warm idle process", eta_ms=900)
FAILED = row(ReplicaState.COLD, "failed 3 times in a row: out of memory", restarts=3)
LOADING = row(ReplicaState.LOADING, "attached", eta_ms=900)
DRAINING = row(ReplicaState.DRAINING, "one more than the 0 wanted")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], DeploymentState(Standing.STARTING, "The fleet has not taken it up yet.")),
        ([READY], DeploymentState(Standing.LIVE, "", AT_MS)),
        ([FAILED, READY], DeploymentState(Standing.LIVE, FAILED.cause, AT_MS)),
        ([ASLEEP, READY], DeploymentState(Standing.LIVE, "", AT_MS)),
        ([DRAINING, LOADING], DeploymentState(Standing.STARTING, "attached", AT_MS, 900)),
        ([FAILED, LOADING], DeploymentState(Standing.STARTING, "attached", AT_MS, 900)),
        ([WAITING], DeploymentState(Standing.STARTING, WAITING.cause, AT_MS, 900)),
        ([FAILED], DeploymentState(Standing.FAILING, FAILED.cause, AT_MS)),
        ([DISK, WARM, ASLEEP], DeploymentState(Standing.ASLEEP, "idle for 60 s", AT_MS, 300)),
        ([DISK, WARM], DeploymentState(Standing.WARM, "idle for 600 s", AT_MS, 900)),
        ([DISK], DeploymentState(Standing.DISK, "idle for a day", AT_MS, 4_000)),
        ([STORE], DeploymentState(Standing.STORE, "idle for a week", AT_MS)),
        ([DRAINING], DeploymentState(Standing.DRAINING, DRAINING.cause, AT_MS)),
    ],
)
def test_a_deployment_stands_as_its_replicas_do(rows, expected) -> None:
    assert judge(rows) == expected


@given(st.permutations([READY, ASLEEP, WARM, DISK, WAITING, LOADING, DRAINING]), st.integers(0, 7))
def test_the_order_of_the_rows_does_not_matter(rows, count) -> None:
    assert judge(rows[:count]).standing == judge(rows[:count][::-1]).standing
