"""Versions on live traffic: a good one goes all the way, each bad one is stopped before it has a quarter of it.

Bad are one with shuffled weights, and by failpoints in its replicas: errors, slow steps, truncated answers, NaN.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from crowd import Crowd
from msgspec import structs
from owner import BadLine, Owner, Person, Upload, follow_the_checklist, make_key
from running_stack import MODEL_DIR, RunningStack, running_stack, wait_for
from short_answers import a_little_different, make_short_answers, shuffled

from controlplane.rollouts.plan import Plan, Step, scaled, to_json

CALLERS = 6
MOST_BEFORE_STOPPED = 25
ENDED = {"promoted", "rolled_back", "aborted", "superseded"}
FAULTS = {
    "errors": "engine.row=raise%3",
    "slow steps": "engine.step=delay:400@3+",
    "truncated answers": "engine.logits=truncate:1@2+",
    "NaN": "engine.logits=nan@2+",
}
TIMES = {"ttft_limit": 4.0, "ttft_stop": 12.0, "tpot_limit": 4.0, "tpot_stop": 12.0}
"""Limits of times for tests, which run on machines that do other work too."""


def with_part_of(samples: float) -> Plan:
    """The product's plan with a part of its samples, whose limits widen to what those can still prove."""
    steps = tuple(Step(weight, 3, 1200) for weight in (24, 50))
    fewer = scaled(Plan(steps=steps, ramp_s=1, bake_100_s=3, keep_previous_s=600), samples=samples)
    return structs.replace(fewer, judge=structs.replace(fewer.judge, **TIMES, share_margin=0.1))


PLAN = with_part_of(0.1)
Record = Callable[[str, object], None]


class Stage(NamedTuple):
    """The product, and who uses it."""

    product: RunningStack
    owner: Owner
    admin: Person
    key: str
    faults: Path


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A product whose versions can be made faulty, with a tiny model to begin with."""
    folder = tmp_path_factory.mktemp("rollouts")
    model, faults = make_short_answers(folder / "short-answers"), folder / "faults"
    with running_stack(PAGODA_MODEL_DIR=str(model), PAGODA_FAILPOINTS_FILE=str(faults)) as product:
        details = product.details
        key = make_key(details, ["inference", "deployments"])
        with (
            Owner(details["api_url"], key) as owner,
            Person(details["console_url"], details["admin_email"], details["admin_password"]) as admin,
        ):
            yield Stage(product, owner, admin, key, faults)


@pytest.fixture
def source(stage: Stage) -> Path:
    """The folder of the version that serves at the beginning."""
    return Path(stage.product.environment["PAGODA_MODEL_DIR"])


def test_a_good_version_is_promoted_and_a_bad_one_is_stopped(stage, source, tmp_path, record_property):
    live_through(stage, source, tmp_path, ["truncated answers"], record_property)


@pytest.mark.slow
def test_a_good_version_is_promoted_and_five_bad_ones_are_stopped(stage, source, tmp_path, record_property):
    live_through(stage, source, tmp_path, ["shuffled weights", *FAULTS], record_property)


@pytest.mark.slow
def test_the_bundled_model_moves_to_its_next_version_under_traffic(stage, tmp_path, record_property):
    folders = [shutil.copytree(MODEL_DIR, tmp_path / name) for name in ("first", "second")]
    (folders[1] / "README.md").write_text("The second version: its weights are those of the first.")
    first, second = (bring(stage, folder, model="bundled") for folder in folders)
    made = stage.owner.do("POST", "deployments", name="bundled", version_id=first)
    wait_for(lambda: stage.owner.get(f"deployments/{made['id']}")["standing"] == "live", "a live deployment")
    with Crowd(stage.product.details["gateway_url"], stage.key, "bundled", 4, max_tokens=6) as crowd:
        record_property("promoted", see_it_promoted(stage, made["id"], second, with_part_of(0.05)))
    assert set(crowd.heard) == {"whole"}
    record_property("heard", dict(crowd.heard))
    see_that_only_ready_replicas_served(stage, made["id"])
    see_that_weights_were_whole(stage, made["id"])
    stage.owner.do("DELETE", f"deployments/{made['id']}")


def live_through(stage: Stage, source: Path, tmp_path: Path, bad: list[str], record: Record) -> None:
    record("plan", json.dumps(to_json(PLAN)))
    deployment_id = the_deployment(stage)
    versions = {fault: bring(stage, spoilt(source, tmp_path, fault), fault) for fault in bad}
    good = bring(stage, a_little_different(tmp_path / "good", source, next(SEEDS)))
    with Crowd(stage.product.details["gateway_url"], stage.key, stage.product.details["model"], CALLERS) as crowd:
        for fault, version_id in versions.items():
            stopped = see_it_stopped(stage, deployment_id, version_id)
            record(fault, stopped["reason"])
        record("promoted", see_it_promoted(stage, deployment_id, good))
    record("heard", dict(crowd.heard))
    assert crowd.heard["whole"] > 0
    assert set(crowd.heard) <= {"whole", "request_failed", "logits_not_finite"}, crowd.heard
    see_that_only_ready_replicas_served(stage, deployment_id)
    see_that_weights_were_whole(stage, deployment_id)


SEEDS = count(1)


def the_deployment(stage: Stage) -> str:
    listed = stage.owner.get("deployments")["data"]
    return next(str(each["id"]) for each in listed if each["name"] == stage.product.details["model"])


def spoilt(source: Path, tmp_path: Path, fault: str) -> Path:
    folder = tmp_path / fault.replace(" ", "-")
    return shuffled(folder, source) if fault == "shuffled weights" else a_little_different(folder, source, next(SEEDS))


def bring(stage: Stage, folder: Path, fault: str = "", model: str = "") -> str:
    """Upload a version of the model, and once it is ready let its replicas have ``fault``."""
    upload = Upload(stage.owner, model or stage.product.details["model"], folder, BadLine([]), "http")
    upload.run()
    follow_the_checklist(stage.owner, upload.version_id)
    if fault in FAULTS:
        with stage.faults.open("a") as lines:
            lines.write(f"{upload.version_id}: {FAULTS[fault]}\n")
    return upload.version_id


def start(stage: Stage, deployment_id: str, version_id: str, plan: Plan) -> str:
    drafted = stage.owner.do(
        "POST", "rollouts", deployment_id=deployment_id, candidate_version_id=version_id, plan=to_json(plan)
    )  # fmt: skip
    stage.owner.do("POST", f"rollouts/{drafted['id']}/start", revision=drafted["revision"])
    return str(drafted["id"])


def until(stage: Stage, rollout_id: str, states: set[str]) -> dict[str, Any]:
    """Read a rollout until it is in one of ``states``, or needs a person, or has ended."""

    def there() -> dict[str, Any] | None:
        rollout: dict[str, Any] = stage.owner.get(f"rollouts/{rollout_id}")
        return rollout if rollout["state"] in states | ENDED | {"paused", "awaiting_approval"} else None

    found: dict[str, Any] = wait_for(there, f"a rollout that is {' or '.join(sorted(states))}", deadline_s=400)
    assert found["state"] in states, f"{found['state']}: {found['reason']} {found['waits_for']}"
    return found


def see_it_stopped(stage: Stage, deployment_id: str, version_id: str) -> dict[str, Any]:
    rollout = until(stage, start(stage, deployment_id, version_id, PLAN), {"rolled_back"})
    assert max(event["weight"] for event in rollout["events"]) < MOST_BEFORE_STOPPED
    assert len(rollout["reason"].split()) > 5, "a reason is words"
    return rollout


def see_it_promoted(stage: Stage, deployment_id: str, version_id: str, plan: Plan = PLAN) -> list[str]:
    """See it wait for somebody else's approval, and then serve all."""
    rollout_id = start(stage, deployment_id, version_id, plan)
    waiting = until(stage, rollout_id, {"awaiting_approval"})
    asked = stage.owner.ask(
        "POST", f"rollouts/{rollout_id}/approve", revision=waiting["revision"], step=waiting["step"],
        digest=waiting["candidate"]["digest"], waivers={},
    )  # fmt: skip
    assert asked.status_code == 403, "a key approved"
    stage.admin.do(
        "POST", f"platform/rollouts/{rollout_id}/approve", revision=waiting["revision"], step=waiting["step"],
        digest=waiting["candidate"]["digest"],
        waivers={"evals": "there are none yet", "shadow": "there is none yet"},
    )  # fmt: skip
    promoted = until(stage, rollout_id, {"promoted"})
    arms = stage.owner.get(f"deployments/{deployment_id}")["arms"]
    assert {arm["name"]: arm["weight"] for arm in arms if arm["version_id"] == version_id} == {"stable": 100}
    ramps = [(event["step"], event["weight"]) for event in promoted["events"] if event["new"] == "ramp"]
    assert ramps == [(at, step.weight) for at, step in enumerate(plan.steps)], "no step left out or repeated"
    return [event["cause"] for event in promoted["events"]]


def see_that_only_ready_replicas_served(stage: Stage, deployment_id: str) -> None:
    """Compare when each request was sent to its replica with when that replica took traffic."""
    unready = stage.product.query(
        """
        SELECT u.request_id, u.replica_id FROM metering_usagerow u
        WHERE u.deployment_id = %s AND u.replica_id <> '' AND NOT EXISTS (
            SELECT 1 FROM deployments_replicaevent r
            WHERE r.replica_id = u.replica_id AND r.new = 'ready'
            AND r.at <= u.started_at + coalesce(u.queue_ms, 0) * interval '1 millisecond'
        )
        """,
        deployment_id,
    )
    assert unready == []
    served = stage.product.query("SELECT count(*) AS n FROM metering_usagerow WHERE deployment_id = %s", deployment_id)
    assert served[0]["n"] > 0


def see_that_weights_were_whole(stage: Stage, deployment_id: str) -> None:
    """Read from the gateway's log what it applied: over stable and candidate, 100 in each snapshot."""
    applied = [
        line["rollouts"][deployment_id]
        for line in map(json.loads, (stage.product.home / "logs" / "gateway.log").read_text().splitlines())
        if line.get("event") == "catalog_applied" and deployment_id in line["rollouts"]
    ]
    assert {tuple(sorted(arms)) for arms in applied} >= {("candidate", "stable")}
    for arms in applied:
        assert sum(weight for name, (_, weight) in arms.items() if name != "previous") == 100, arms
        assert arms.get("previous", (None, 0))[1] == 0, arms
