import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from control_double import SECRET, ControlDouble
from fleet_harness import FleetProcess, Home, ask, deployment, processes_of, ready, rows

from dataplane.contracts import auc, headers, probes
from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import EngineSettings, Share
from dataplane.contracts.probes import ProbeKind, ProbeReport
from dataplane.contracts.replica import ReplicaEvent, ReplicaState
from dataplane.fleet.probes import CannotProbe, of_fleet
from stack.redis import Redis

S = ReplicaState


def events(control: ControlDouble) -> list[ReplicaEvent]:
    known = {event.sequence: event for report in control.reports for event in report.events}
    return [known[sequence] for sequence in sorted(known)]


def test_a_deployment_becomes_ready_only_by_a_real_generation_and_each_step_is_told(
    home: Home, fleet: FleetProcess, control: ControlDouble
) -> None:
    version = home.fake("ver-1")
    fleet.publish(deployment("chat", version), versions=[version])
    (row,) = fleet.wait_ready()
    assert (row.deployment_id, row.version_id, row.owner_tenant_id) == ("dep-chat", "ver-1", "acme")
    told = ask(row, "GET", "/told")
    assert told["told"] == ["Attach", "MarkReady"]
    (request,) = told["requests"]
    assert request["body"]["model"] == "chat"
    assert request["headers"]["x-pagoda-deployment"] == "dep-chat"
    fleet.wait_idle()
    control.wait_for_report(lambda _: any(event.new is S.READY for event in events(control)))
    steps = [(event.old, event.new) for event in events(control) if event.replica_id == row.replica_id]
    assert steps[-3:] == [(S.WARM_IDLE, S.LOADING), (S.LOADING, S.WARMING), (S.WARMING, S.READY)]
    assert all(event.cause for event in events(control))


def test_a_crash_loop_backs_off_and_a_good_version_ends_it(
    home: Home, fleet: FleetProcess, control: ControlDouble
) -> None:
    bad, good = home.fake("ver-bad", live_s=0.05), home.fake("ver-good")
    fleet.publish(deployment("chat", bad), versions=[bad, good])
    fleet.wait(lambda table: any("failed 3 times in a row" in row.cause for row in rows(table, state=S.COLD)))
    fleet.publish(deployment("chat", good), versions=[bad, good])
    fleet.wait_ready(version_id="ver-good")
    control.wait_for_report(lambda _: any(e.new is S.READY and e.version_id == "ver-good" for e in events(control)))
    attached = [e.at_ms for e in events(control) if e.new is S.LOADING and e.version_id == "ver-bad"]
    failed = [e.at_ms for e in events(control) if e.new is S.STOPPED and e.version_id == "ver-bad"]
    assert len(attached) == 3
    assert attached[2] - failed[1] >= 500  # the third try waited; the second came at once


def test_a_killed_replica_is_replaced_from_the_warm_idle_floor_with_its_cause(
    home: Home, fleet: FleetProcess, control: ControlDouble
) -> None:
    version = home.fake("ver-1")
    fleet.publish(deployment("chat", version), versions=[version])
    (first,) = fleet.wait_ready()
    (idle,) = fleet.wait_idle()
    os.kill(first.pid, signal.SIGKILL)
    table = fleet.wait(lambda table: any(row.replica_id == idle.replica_id for row in ready(table)))
    (dead,) = rows(table, replica_id=first.replica_id)
    assert (dead.state, dead.cause) == (S.STOPPED, "killed by SIGKILL")
    fleet.wait_idle()
    assert ready(fleet.table())[0].restarts == 1


def test_a_new_version_or_new_settings_replace_a_replica_without_a_gap(home: Home, fleet: FleetProcess) -> None:
    one, two = home.fake("ver-1", drain_s=0.3), home.fake("ver-2", load_s=0.5)
    fleet.publish(deployment("chat", one), versions=[one, two])
    fleet.wait_ready()
    changes = [
        (two, EngineSettings(), "ver-2"),
        (two, EngineSettings(max_num_seqs=4), "ver-2"),
    ]
    for version, engine, version_id in changes:
        (before,) = ready(fleet.table())
        fleet.publish(deployment("chat", version, engine=engine), versions=[one, two])
        seen = [fleet.table()]
        while rows(seen[-1], replica_id=before.replica_id)[0].state is not S.STOPPED:
            seen.append(fleet.table(after=seen[-1].number, wait_s=5))
        assert all(ready(table) for table in seen)
        (after,) = fleet.wait_ready(version_id=version_id)
        assert after.replica_id != before.replica_id
        (old,) = rows(fleet.table(), replica_id=before.replica_id)
        assert "replaced by a newer version or other settings" in old.cause


def test_a_process_serves_one_owner_in_its_life(home: Home, fleet: FleetProcess) -> None:
    ours, theirs = home.fake("ver-a"), home.fake("ver-e", owner="evil")
    fleet.publish(deployment("a", ours), versions=[ours, theirs])
    (first,) = fleet.wait_ready()
    fleet.publish(deployment("a", ours, active=False), deployment("e", theirs, owner="evil"), versions=[ours, theirs])
    (second,) = fleet.wait_ready(owner_tenant_id="evil")
    assert second.pid != first.pid
    fleet.wait(lambda table: rows(table, replica_id=first.replica_id)[0].state is S.STOPPED)
    assert ask(second, "GET", "/told")["told"] == ["Attach", "MarkReady"]


def test_changed_grants_reach_a_running_replica_split_over_the_replicas(home: Home, fleet: FleetProcess) -> None:
    version = home.fake("ver-1")
    fleet.publish(deployment("chat", version, count=2), versions=[version])
    before = fleet.wait_ready(2)
    grants = {"acme": Share(guarantee_tokens=101, cap_tokens=200, weight=3), "evil": Share()}
    fleet.publish(deployment("chat", version, count=2, grants=grants), versions=[version])
    deadline = time.monotonic() + 60
    for row in before:
        while ask(row, "GET", "/told")["told"] != ["Attach", "MarkReady", "SetShares"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert ask(row, "GET", "/told")["shares"] == msgspec.to_builtins(grants)
    parts = [ask(row, "GET", "/told")["leases"]["acme"] for row in before]
    assert sorted((part["guarantee_blocks"], part["cap_blocks"]) for part in parts) == [(6, 12), (7, 13)]
    assert {row.replica_id for row in fleet.wait_ready(2)} == {row.replica_id for row in before}


def test_a_drain_by_order_ends_the_replica_and_a_successor_takes_over(home: Home, fleet: FleetProcess) -> None:
    version = home.fake("ver-1")
    fleet.publish(deployment("chat", version), versions=[version])
    (row,) = fleet.wait_ready()
    assert fleet.http.post(f"/replicas/{row.replica_id}/drain").status_code == 202
    table = fleet.wait(lambda table: ready(table) != [] and ready(table)[0].replica_id != row.replica_id)
    assert "drained by order" in rows(table, replica_id=row.replica_id)[0].cause
    refused = fleet.http.post(f"/replicas/{row.replica_id}/drain")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")


def test_a_damaged_blob_is_named_and_the_version_starts_once_it_is_restored(home: Home, fleet: FleetProcess) -> None:
    version = home.fake("ver-1")
    blob = home.blob(version.files[0].sha256)
    good = blob.read_bytes()
    blob.write_bytes(good[:-1] + b"X")
    fleet.publish(deployment("chat", version), versions=[version])
    table = fleet.wait(lambda table: any("corrupted" in row.cause for row in rows(table, state=S.COLD)))
    (row,) = rows(table, state=S.COLD)
    assert f"behaviour.json: blob {version.files[0].sha256} is corrupted" in row.cause
    blob.write_bytes(good)
    fleet.wait_ready()


def test_a_worker_is_given_only_what_it_needs(home: Home, fleet: FleetProcess) -> None:
    version = home.fake("ver-1")
    fleet.publish(deployment("chat", version), versions=[version])
    (row,) = fleet.wait_ready()
    told = ask(row, "GET", "/told")
    assert told["environment"].keys() <= {
        "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "OMP_NUM_THREADS", "PAGODA_INTERNAL_SECRET",
        "PYTHONPATH", "PYTHONUNBUFFERED", "PAGODA_FLEET_HOME",
    }  # fmt: skip
    assert told["environment"]["OMP_NUM_THREADS"] == "1"
    assert told["session"] == row.pid


def test_a_fleet_killed_and_started_again_leaves_no_stray_and_serves_its_last_good_catalog(
    home: Home, fleet: FleetProcess, control: ControlDouble
) -> None:
    version = home.fake("ver-1")
    fleet.publish(deployment("chat", version), versions=[version])
    (row,) = fleet.wait_ready()
    fleet.wait_idle()
    control.wait_for_report(lambda _: any(event.new is S.READY for event in events(control)))
    former = {process.pid for process in processes_of(home)}
    number = fleet.table().number
    fleet.kill()
    control.broken = True
    fleet.redis.delete(contract.REDIS_KEY)
    fleet.start()
    (after,) = fleet.wait_ready()
    assert after.replica_id != row.replica_id
    assert not former & {process.pid for process in processes_of(home)}
    assert fleet.table().number > number
    control.broken = False
    control.wait_for_report(
        lambda _: any(e.replica_id == row.replica_id and e.new is S.STOPPED for e in events(control))
    )
    numbers = [event.sequence for event in events(control)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_sigterm_drains_every_replica_and_tells_the_control_plane(short_dir: Path, redis_server: Redis) -> None:
    home = Home(short_dir)
    version = home.fake("ver-1", drain_s=0.3)
    with ControlDouble() as control, FleetProcess(home, redis_server.url, control) as fleet:
        fleet.publish(deployment("chat", version), versions=[version])
        (row,) = fleet.wait_ready()
        assert fleet.end() == 0
    assert processes_of(home) == []
    last = [event for event in events(control) if event.replica_id == row.replica_id][-2:]
    assert [(event.old, event.new) for event in last] == [(S.READY, S.DRAINING), (S.DRAINING, S.STOPPED)]
    assert last[1].cause == "the fleet shuts down (exited with status 0)"
    assert os.listdir(home.path / "run") == []


def test_events_wait_for_a_control_plane_that_is_away(home: Home, fleet: FleetProcess, control: ControlDouble) -> None:
    control.broken = True
    version = home.fake("ver-1")
    fleet.publish(deployment("chat", version), versions=[version])
    fleet.wait_ready()
    assert not any(event.new is S.READY for event in events(control))
    control.broken = False
    control.wait_for_report(lambda _: any(event.new is S.READY for event in events(control)))
    numbers = [event.sequence for event in events(control)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_the_door_is_for_internal_calls_and_names_what_is_wrong(fleet: FleetProcess) -> None:
    for path in ("/replicas", "/metrics"):
        assert fleet.http.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401
    assert fleet.http.post("/replicas/rep_x/drain", headers={"authorization": ""}).status_code == 401
    for query in ({"after": "x"}, {"wait_s": "nan"}, {"wait_s": "-1"}):
        refused = fleet.http.get("/replicas", params=query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(query)))
    health = fleet.http.get("/health", headers={"authorization": ""})
    assert (health.status_code, health.json()["status"]) == (200, "ok")
    fleet.wait_idle()
    assert 'pagoda_fleet_replicas{state="warm_idle"} 1.0' in fleet.http.get("/metrics").text


def test_a_second_fleet_on_the_same_folder_or_port_is_refused_with_a_sentence(
    home: Home, fleet: FleetProcess, control: ControlDouble, redis_server: Redis
) -> None:
    command = [sys.executable, "-m", "dataplane.fleet"]
    second = subprocess.run(command, env=fleet.environ, capture_output=True, text=True, cwd="/", check=False)
    assert second.returncode == 2
    assert "another fleet already runs" in second.stderr


def test_what_several_tenants_share_is_probed_by_order_and_what_was_found_is_reported(
    home: Home, fleet: FleetProcess, control: ControlDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.fleet.probes._LOOK_S", 0.05)
    url = f"http://127.0.0.1:{fleet.port}"
    for name in ("/probes", "/demand"):
        assert fleet.http.post(name, content=b"{}").json()["error"]["code"] == "invalid_request"
    with pytest.raises(CannotProbe, match="several tenants"):
        asyncio.run(of_fleet(url, SECRET, 10))
    version, own = home.fake("ver-shared"), home.fake("ver-own")
    shared = deployment("shared", version, grants={"acme": Share(), "evil": Share()})
    fleet.publish(shared, deployment("own", own), versions=[version, own])
    fleet.wait_ready(2)
    with pytest.raises(CannotProbe, match="samples are from 1"):
        asyncio.run(of_fleet(url, SECRET, 0))
    told = asyncio.run(of_fleet(url, SECRET, 10))
    assert {report.kind for report in told} == set(ProbeKind)

    def found(kind: ProbeKind) -> ProbeReport | None:
        told = [probe for report in control.reports for probe in report.probes if probe.kind is kind]
        return told[-1] if told else None

    def is_complete(kind: ProbeKind, samples: int) -> bool:
        told = found(kind)
        return told is not None and min(auc.size(told.slow), auc.size(told.fast)) >= samples

    wanted = {ProbeKind.WITHIN: 10, ProbeKind.ACROSS: 10, ProbeKind.BATCH: 1, ProbeKind.PACED: 1}
    control.wait_for_report(lambda _: all(is_complete(kind, samples) for kind, samples in wanted.items()))
    (row,) = ready(fleet.table(), deployment_id="dep-shared")
    across = found(ProbeKind.ACROSS)
    assert across is not None
    assert (across.replica_id, across.version_id, across.deployment_id) == (row.replica_id, "ver-shared", "dep-shared")
    first, *others = ask(row, "GET", "/told")["requests"]
    assert headers.PROBE not in first["headers"]  # the generation that made it READY
    assert {call["headers"][headers.PROBE] for call in others} == {"1"}
    assert {call["headers"][headers.TENANT] for call in others} == set(probes.TENANTS)
    (alone,) = ready(fleet.table(), deployment_id="dep-own")
    assert len(ask(alone, "GET", "/told")["requests"]) == 1
