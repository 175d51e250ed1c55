"""A fleet with scripted workers: idle deployments step down and come back, versions are tried and rolled out."""

import shutil

import msgspec
import pytest
from control_double import ControlDouble
from fleet_harness import FleetProcess, Home, ask, deployment, living, ready, rows

from dataplane.contracts.catalog import CANDIDATE, PREVIOUS, Arm, EngineSettings, Hold, IdlePolicy, Share
from dataplane.contracts.replica import (
    FleetReport,
    ReplicaState,
    Tier,
    TrialReport,
    TrialRequest,
    TrialState,
)

S = ReplicaState
SLEEPY = IdlePolicy(asleep_after_s=1)


def costs(control: ControlDouble, *tiers: Tier) -> FleetReport:
    """Wait for a report with costs of exactly these tiers for ``dep-chat``."""
    control.wait_for_report(
        lambda reports: any([cost.tier for cost in r.costs.get("dep-chat", ())] == list(tiers) for r in reports)
    )
    return control.reports[-1]


def test_idle_it_sleeps_and_any_number_of_callers_wakes_it_with_one_load(
    home: Home, fleet: FleetProcess, control: ControlDouble
) -> None:
    version = home.fake("ver-1", memory_bytes=2**24)
    fleet.publish(deployment("chat", version, count=0, idle=SLEEPY), versions=[version])
    (cold,) = rows(fleet.wait(lambda table: rows(table, state=S.COLD) != []), state=S.COLD)
    assert (cold.idle, cold.tier, cold.eta_ms) == (True, Tier.STORE, None)
    assert (cold.deployment_id, cold.version_id, cold.owner_tenant_id) == ("dep-chat", "ver-1", "acme")

    first = fleet.wait_called("chat")
    fleet.call()
    (asleep,) = rows(fleet.wait(lambda table: rows(table, state=S.ASLEEP) != []), state=S.ASLEEP)
    assert (asleep.replica_id, asleep.idle, asleep.tier) == (first.replica_id, True, Tier.ASLEEP)
    assert asleep.eta_ms is not None  # bounded by what the colder start took
    assert asleep.memory_bytes == 2**24
    assert fleet.http.get("/health").json()["asleep"] == 1

    for number in range(300):
        fleet.call(f"gateway-{number % 3}", chat=1 + number)
    (woken,) = fleet.wait_ready()
    assert woken.replica_id == first.replica_id
    assert ask(woken, "GET", "/told")["told"] == ["Attach", "MarkReady", "Sleep", "Wake", "MarkReady"]
    assert len(ask(woken, "GET", "/told")["requests"]) == 2  # each READY was earned by a generation
    report = costs(control, Tier.ASLEEP, Tier.STORE)
    assert all(cost.samples == 1 and cost.p50_ms == cost.p95_ms for cost in report.costs["dep-chat"])
    assert report.resources is not None
    assert 0 < report.resources.available_bytes < report.resources.memory_bytes
    assert [device.kind for device in report.resources.devices] == ["cpu"]


def test_it_steps_down_tier_by_tier_and_what_was_measured_outlives_the_fleet(
    home: Home, fleet: FleetProcess, control: ControlDouble
) -> None:
    version = home.fake("ver-1")

    def rests(idle: IdlePolicy) -> None:
        fleet.publish(deployment("chat", version, count=0, idle=idle), versions=[version])

    rests(SLEEPY)
    row = fleet.wait_called("chat")
    fleet.call()
    fleet.wait(lambda table: rows(table, state=S.ASLEEP) != [])
    rests(IdlePolicy(asleep_after_s=1, warm_after_s=2))
    table = fleet.wait(lambda table: rows(table, state=S.COLD, tier=Tier.WARM) != [])
    fleet.wait(lambda table: rows(table, replica_id=row.replica_id, state=S.STOPPED) != [])
    rests(IdlePolicy(asleep_after_s=1, warm_after_s=2, disk_after_s=3))
    fleet.wait(lambda table: rows(table, state=S.COLD, tier=Tier.DISK) != [])
    (resting,) = rows(table, state=S.COLD)
    assert resting.idle
    assert "a call starts it" in resting.cause
    (ended,) = rows(fleet.table(), replica_id=row.replica_id)
    assert "idle: steps down to warm" in ended.cause
    assert fleet.http.get("/health").json()["missing"] == 0

    again = fleet.wait_called("chat")
    assert again.pid != row.pid  # a process that held weights is never used again
    costs(control, Tier.WARM, Tier.STORE)
    fleet.call()
    fleet.end()
    control.reports.clear()
    fleet.start()
    costs(control, Tier.WARM, Tier.STORE)
    fleet.wait(lambda table: any(row.eta_ms is not None for row in rows(table, state=S.COLD, idle=True)))
    fleet.wait_idle()


def test_a_replica_that_is_used_as_it_falls_asleep_stays_ready(home: Home, fleet: FleetProcess) -> None:
    version = home.fake("ver-busy", sleep="busy")
    fleet.publish(deployment("chat", version, count=0, idle=SLEEPY), versions=[version])
    row = fleet.wait_called("chat")
    fleet.call()
    table = fleet.wait(lambda table: any("as it was to fall asleep" in row.cause for row in ready(table)))
    assert ready(table)[0].replica_id == row.replica_id


def test_a_sleeper_that_cannot_wake_is_replaced_with_its_cause(home: Home, fleet: FleetProcess) -> None:
    version = home.fake("ver-stiff", wake="fail")
    fleet.publish(deployment("chat", version, count=0, idle=SLEEPY), versions=[version])
    row = fleet.wait_called("chat")
    fleet.call()
    fleet.wait(lambda table: rows(table, state=S.ASLEEP) != [])
    assert fleet.wait_called("chat").replica_id != row.replica_id
    assert "no memory for a KV pool" in rows(fleet.table(), replica_id=row.replica_id)[0].cause


def test_a_candidate_is_ready_before_it_has_weight_and_the_way_back_is_a_wake(home: Home, fleet: FleetProcess) -> None:
    versions = [old, new] = [home.fake("ver-1"), home.fake("ver-2")]
    grants = {"acme": Share(guarantee_tokens=101)}
    fleet.publish(deployment("chat", old, grants=grants), versions=versions)
    [before] = fleet.wait_ready()
    for weight in (0, 100):
        candidate = Arm("ver-2", weight, CANDIDATE, Hold.READY)
        fleet.publish(deployment("chat", old, candidate, grants=grants), versions=versions)
        [after] = fleet.wait_ready(version_id="ver-2")
    assert fleet.wait_ready(version_id="ver-1")[0].replica_id == before.replica_id
    told = [ask(row, "GET", "/told") for row in (before, after)]
    assert [each["told"] for each in told] == [["Attach", "MarkReady"]] * 2, "weights change nothing in a replica"
    assert [each["shares"]["acme"]["guarantee_tokens"] for each in told] == [101, 101], "a caller is on one arm alone"

    previous = Arm("ver-1", 0, PREVIOUS, Hold.ASLEEP)
    fleet.publish(deployment("chat", new, previous, grants=grants), versions=versions)
    table = fleet.wait(lambda table: rows(table, version_id="ver-1", state=S.ASLEEP) != [])
    assert "held for a way back" in rows(table, replica_id=before.replica_id)[0].cause
    assert ready(table)[0].replica_id == after.replica_id
    fleet.publish(deployment("chat", old, grants=grants), versions=versions)
    assert fleet.wait_ready(version_id="ver-1")[0].replica_id == before.replica_id
    assert ask(before, "GET", "/told")["told"] == ["Attach", "MarkReady", "Sleep", "Wake", "MarkReady"]
    fleet.wait(lambda table: rows(table, replica_id=after.replica_id, state=S.STOPPED) != [])


def test_a_candidate_that_gets_ready_does_not_wake_the_idle_deployment_it_is_for(
    home: Home, fleet: FleetProcess
) -> None:
    versions = [old, _] = [home.fake("ver-1"), home.fake("ver-2")]
    fleet.publish(deployment("chat", old, count=0, idle=SLEEPY), versions=versions)
    stable = fleet.wait_called("chat")
    fleet.call()
    fleet.wait(lambda table: rows(table, state=S.ASLEEP) != [])
    candidate = Arm("ver-2", 0, CANDIDATE, Hold.READY)
    fleet.publish(deployment("chat", old, candidate, count=0, idle=SLEEPY), versions=versions)
    [tried] = fleet.wait_ready(version_id="ver-2")
    fleet.publish(deployment("chat", old, count=0, idle=SLEEPY), versions=versions)
    fleet.wait(lambda table: rows(table, replica_id=tried.replica_id, state=S.STOPPED) != [])
    assert ask(stable, "GET", "/told")["told"] == ["Attach", "MarkReady", "Sleep"]


def try_out(fleet: FleetProcess, request: TrialRequest) -> TrialReport:
    """Have a version tried, and return how that ended."""
    assert fleet.http.post("/trials", content=msgspec.json.encode(request)).status_code == 202
    while True:
        answer = fleet.http.get(f"/trials/{request.version.id}", params={"wait_s": 5})
        report = msgspec.json.decode(answer.content, type=TrialReport)
        if report.state is not TrialState.RUNNING:
            return report
        assert report.cause


def test_a_version_is_tried_once_through_the_serving_path_and_its_process_ends(
    home: Home, fleet: FleetProcess, control: ControlDouble
) -> None:
    version = home.fake("ver-new")
    report = try_out(fleet, TrialRequest(version, EngineSettings()))
    assert report == TrialReport("ver-new", TrialState.PASSED, "a first generation was answered", report.first_token_ms)
    assert report.first_token_ms >= 0
    fleet.wait(lambda table: living(table) == [S.WARM_IDLE])
    (tried,) = rows(fleet.table(), deployment_id="trial_ver-new")
    assert (tried.state, tried.owner_tenant_id) == (S.STOPPED, "acme")
    again = try_out(fleet, TrialRequest(version, EngineSettings()))
    assert again.state is TrialState.PASSED
    control.wait_for_report(lambda reports: reports[-1].table.number >= fleet.table().number)
    assert control.reports[-1].costs.get("trial_ver-new") is None


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ({"generate": "error"}, "the logits are not finite"),
        ({"load": "give_up"}, "rope type is unknown"),
        ({"load": "crash"}, "a weight is missing"),
    ],
)
def test_a_version_that_does_not_answer_fails_its_trial_with_the_cause(
    home: Home, fleet: FleetProcess, behaviour: dict[str, str], words: str
) -> None:
    version = home.fake("ver-bad", **behaviour)
    report = try_out(fleet, TrialRequest(version, EngineSettings()))
    assert report.state is TrialState.FAILED
    assert words in report.cause


def test_a_store_or_a_disk_that_does_not_give_the_bytes_is_not_held_against_a_version(
    home: Home, fleet: FleetProcess
) -> None:
    version = home.fake("ver-lost")
    blob = home.blob(version.files[0].sha256)
    request, content = TrialRequest(version, EngineSettings()), blob.read_bytes()
    blob.unlink()
    report = try_out(fleet, request)
    assert (report.state, "is missing from the store" in report.cause) == (TrialState.GIVEN_UP, True)
    blob.write_bytes(content)
    folders = home.path / "versions"
    shutil.rmtree(folders, ignore_errors=True)
    folders.write_text("a disk on which no folder can be made")
    report = try_out(fleet, request)
    assert (report.state, "cannot be made" in report.cause) == (TrialState.GIVEN_UP, True)
    assert str(home.path) not in report.cause
    folders.unlink()
    assert try_out(fleet, request).state is TrialState.PASSED


def test_a_trial_that_nobody_asked_for_is_not_found_and_a_question_of_another_form_is_refused(
    fleet: FleetProcess,
) -> None:
    assert fleet.http.get("/trials/ver-unknown").status_code == 404
    for path in ("/trials", "/demand"):
        refused = fleet.http.post(path, content=b"{}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
        assert fleet.http.post(path, content=b"{}", headers={"authorization": ""}).status_code == 401
