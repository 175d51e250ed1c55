"""Asking the fleet to try a version, over real HTTP."""

import pytest
from msgspec.structs import replace
from validation_world import FleetDouble

from controlplane.registry.validation import trial
from controlplane.registry.validation.trial import FleetAway, run
from dataplane.contracts.catalog import EngineSettings, VersionEntry
from dataplane.contracts.replica import TrialReport, TrialRequest, TrialState

REQUEST = TrialRequest(
    version=VersionEntry("ver_1", "ten_1", "tiny", 1, "0" * 64, (), context_tokens=512, created_at_ms=0),
    engine=EngineSettings(),
)
RUNNING = TrialReport(version_id="ver_1", state=TrialState.RUNNING, cause="loading")


def ask(patience_s: float = 60) -> tuple[TrialReport, list[str]]:
    heard: list[str] = []
    report = run(REQUEST, patience_s=patience_s, tell=lambda news: heard.append(news.cause))
    return report, heard


def test_a_trial_is_followed_to_its_end(fleet: FleetDouble):
    passed = replace(RUNNING, state=TrialState.PASSED, first_token_ms=7)
    fleet.script = [RUNNING, replace(RUNNING, cause="warming"), passed]
    assert ask() == (passed, ["", "loading", "warming"])
    assert fleet.asked == [REQUEST]
    assert ask() == (passed, [])
    assert fleet.asked == [REQUEST], "a version that was tried was tried again"


def test_a_failed_trial_has_its_cause(fleet: FleetDouble):
    fleet.script = [replace(RUNNING, state=TrialState.FAILED, cause="no logits")]
    assert ask()[0].cause == "no logits"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (500, "with 500"),
        (404, "forgotten"),
        (b"not json", "something else than a report"),
        (b'{"state": "dancing"}', "something else than a report"),
        (b"x" * (65 * 1024), "more than 65536 bytes"),
    ],
)
def test_a_fleet_that_answers_nonsense_is_away_and_the_version_is_not_to_blame(fleet: FleetDouble, answer, message):
    fleet.script = [answer]
    with pytest.raises(FleetAway, match=message):
        ask()


def test_a_fleet_that_never_comes_to_an_end_is_not_waited_for_longer_than_patience_lasts(fleet, monkeypatch):
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(trial.time, "monotonic", lambda: next(clock))
    fleet.script = [RUNNING]
    with pytest.raises(FleetAway, match=r"not over after 10 s: loading"):
        ask(patience_s=10)


def test_a_fleet_that_forgot_the_trial_is_asked_anew_another_time(fleet: FleetDouble):
    fleet.script = [RUNNING]
    with pytest.raises(FleetAway, match="forgotten"):
        run(REQUEST, patience_s=60, tell=lambda _: fleet.restart())
    fleet.script = [replace(RUNNING, state=TrialState.PASSED)]
    assert ask()[0].state is TrialState.PASSED
    assert len(fleet.asked) == 2


def test_a_trial_that_the_fleet_gave_up_is_no_verdict_and_begun_anew_another_time(fleet: FleetDouble):
    fleet.script = [replace(RUNNING, state=TrialState.GIVEN_UP, cause="no room")]
    for asked in (1, 2):
        with pytest.raises(FleetAway, match="no room"):
            ask()
        assert len(fleet.asked) == asked


def test_no_fleet_at_all_is_a_fleet_that_is_away(settings):
    settings.PAGODA_FLEET_URL = "http://127.0.0.1:1"
    with pytest.raises(FleetAway, match="does not answer"):
        ask()


def test_a_fleet_with_another_secret_refuses(fleet: FleetDouble, settings):
    settings.PAGODA_INTERNAL_SECRET = "another"
    with pytest.raises(FleetAway, match="401"):
        ask()
