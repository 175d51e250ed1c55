"""A fleet with little patience: what hangs is found and ended, and what can serve serves."""

import os
import signal

import psutil
import pytest
from fleet_harness import IMPATIENT, FleetProcess, Home, ask, deployment, ready, rows

from dataplane.contracts.replica import ReplicaState

S = ReplicaState


@pytest.fixture(scope="module")
def command() -> tuple[str, ...]:
    return IMPATIENT


def test_versions_that_cannot_serve_are_never_ready_their_causes_are_shown_and_the_others_serve(
    home: Home, fleet: FleetProcess
) -> None:
    causes = {
        "error": ({"generate": "error"}, "the logits are not finite"),
        "empty": ({"generate": "empty"}, "no token"),
        "crash": ({"load": "crash"}, "exited with status 3: a weight is missing"),
        "give-up": ({"load": "give_up"}, "rope type is unknown"),
        "stall": ({"load": "stall"}, "hangs while loading: no progress"),
        "good": ({}, ""),
    }
    versions = {name: home.fake(f"ver-{name}", **behaviour) for name, (behaviour, _) in causes.items()}
    fleet.publish(*[deployment(name, version) for name, version in versions.items()], versions=list(versions.values()))
    del causes["good"]
    missing = dict(causes)
    table = fleet.table()
    while missing:
        table = fleet.wait(lambda table, known=table: table.number > known.number)
        for row in rows(table, state=S.COLD):
            name = row.deployment_id.removeprefix("dep-")
            if "times in a row" in row.cause and causes[name][1] in row.cause:
                missing.pop(name, None)
        assert {row.deployment_id for row in ready(table)} <= {"dep-good"}
    fleet.wait_ready()


def test_a_stopped_process_and_pending_work_without_progress_are_found_killed_and_replaced(
    home: Home, fleet: FleetProcess
) -> None:
    version = home.fake("ver-1")
    fleet.publish(deployment("chat", version), versions=[version])
    (first,) = fleet.wait_ready()
    fleet.wait_idle()
    os.kill(first.pid, signal.SIGSTOP)
    table = fleet.wait(lambda table: ready(table) != [] and ready(table)[0].replica_id != first.replica_id)
    assert "no answer" in rows(table, replica_id=first.replica_id)[0].cause
    (second,) = ready(table)
    fleet.wait_idle()
    ask(second, "POST", "/hang")
    table = fleet.wait(lambda table: rows(table, replica_id=second.replica_id, state=S.STOPPED) != [])
    assert "no progress with 1 requests pending" in rows(table, replica_id=second.replica_id)[0].cause
    fleet.wait_ready()
    assert not psutil.pid_exists(first.pid)


def test_a_drain_that_does_not_end_is_cut_short(home: Home, fleet: FleetProcess) -> None:
    version = home.fake("ver-1", drain_s=3600)
    fleet.publish(deployment("chat", version), versions=[version])
    (row,) = fleet.wait_ready()
    fleet.http.post(f"/replicas/{row.replica_id}/drain")
    table = fleet.wait(lambda table: rows(table, replica_id=row.replica_id, state=S.STOPPED) != [])
    assert rows(table, replica_id=row.replica_id)[0].cause == "drained by order (killed: it did not end in time)"
