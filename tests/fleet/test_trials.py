"""How trials end when nothing else ends them. Real ones are in test_tiers_with_real_workers.py."""

import asyncio

from dataplane.contracts.catalog import EngineSettings, VersionEntry
from dataplane.contracts.replica import TrialRequest, TrialState
from dataplane.fleet.trials import LONGEST_S, Trials, deployment_id

REQUEST = TrialRequest(
    version=VersionEntry("ver_1", "ten_1", "tiny", 1, "0" * 64, (), context_tokens=512, created_at_ms=0),
    engine=EngineSettings(),
)


def test_a_trial_that_finds_no_room_in_time_is_given_up_and_the_version_is_not_to_blame() -> None:
    async def story() -> None:
        trials = Trials()
        trials.begin(REQUEST, now_s=0.0)
        trials.waits(deployment_id("ver_1"), "no process is free")
        trials.expire(now_s=LONGEST_S)
        assert (await trials.report("ver_1", 0)).state is TrialState.RUNNING
        trials.expire(now_s=LONGEST_S + 1)
        report = await trials.report("ver_1", 0)
        assert (report.state, report.cause) == (
            TrialState.GIVEN_UP,
            "not over after 900 s; at last: no process is free",
        )
        trials.begin(REQUEST, now_s=LONGEST_S + 2)
        assert (await trials.report("ver_1", 0)).state is TrialState.RUNNING

    asyncio.run(story())
