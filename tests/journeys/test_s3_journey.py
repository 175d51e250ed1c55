"""A model's whole life by the API alone, on a product that keeps its files in a bucket."""

import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from applications import Applications, Heard
from object_store import BUCKET, ObjectStore
from owner import BadLine, Deployment, Owner, Upload, follow_the_checklist
from running_stack import MODEL_DIR, RunningStack, wait_for

CUTS = 10
IDLE_S = 2
MOST_WAIT_S = 120
Record = Callable[[str, object], None]
TURNED_AWAY = {(503, "model_cold"), (503, "overloaded"), (429, "queue_full")}
"""What a caller may hear for whom a sleeping deployment has no place."""


class Stage(NamedTuple):
    """The product, and who uses it."""

    product: RunningStack
    bucket: ObjectStore
    owner: Owner
    applications: Applications


@pytest.fixture
def stage(product_on_s3, bucket, owner, applications) -> Stage:
    return Stage(product_on_s3, bucket, owner, applications)


def test_a_small_model_goes_from_upload_to_serving_and_leaves_nothing_behind(tiny_model, stage, record_property):
    live_through(tiny_model, 30, stage, record_property)


@pytest.mark.slow
def test_the_bundled_model_goes_from_upload_to_serving_and_leaves_nothing_behind(stage, record_property):
    live_through(MODEL_DIR, 300, stage, record_property)


def live_through(folder: Path, callers: int, stage: Stage, record: Record) -> None:
    product, bucket, owner, applications = stage
    model, name = folder.name, f"{folder.name}-chat"
    version_id = upload_over_a_bad_line(owner, bucket, model, folder, record)
    version = follow_the_checklist(owner, version_id)
    assert digests_of(version) == {path.name: sha256_of(path) for path in folder.iterdir()}
    owner.do("PUT", f"models/{version['model_id']}/aliases/stable", version_id=version_id)
    deployment = deploy(owner, version_id, name)
    call_by_every_name(applications, name, version)

    first_token_ms = {"asleep": wake_from_sleep(deployment, applications, name)}
    wake_a_crowd(deployment, applications, name, callers, record)
    for tier, standing in (("warm", "warm"), ("disk", "on disk")):
        deployment.rest(**{f"{tier}_after_s": IDLE_S})
        deployment.stands(standing)
        first_token_ms[tier] = wake_fetching_nothing(deployment, applications, name, tier, product.home)
    record_costs(deployment, first_token_ms, record)

    find_each_call_once(owner, deployment, applications.heard)
    end_everything(owner, applications, deployment, name, version)
    see_the_bucket_emptied(owner, product, bucket, version)


def upload_over_a_bad_line(owner: Owner, bucket: ObjectStore, model: str, folder: Path, record: Record) -> str:
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    line = BadLine(random.Random(7).sample(range(1, size_bytes), CUTS))
    upload = Upload(owner, model, folder, line, bucket.endpoint)
    upload.run()
    record("upload", f"{len(upload.sends)} parts in {upload.sends.total()} sends over {line.cuts} cuts")
    assert line.cuts == CUTS
    assert upload.sends.total() <= len(upload.sends) + line.cuts, "more than one part was sent again for a cut"
    return upload.version_id


def digests_of(version: dict[str, Any]) -> dict[str, str]:
    return {file["name"]: file["sha256"] for file in version["files"]}


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def deploy(owner: Owner, version_id: str, name: str) -> Deployment:
    made = owner.do(
        "POST", "deployments", name=name, version_id=version_id, min_replicas=0,
        idle={"asleep_after_s": IDLE_S, "cold_wait_s": MOST_WAIT_S},
    )  # fmt: skip
    return Deployment(owner, made["id"])


def call_by_every_name(applications: Applications, name: str, version: dict[str, Any]) -> None:
    wait_for(lambda: name in applications.models(), "a gateway that knows the deployment")
    for called in (name, f"{name}@{version['number']}", f"{name}@stable"):
        assert applications.call(called).whole, called
    assert applications.call(f"{name}@nowhere").error_code == "model_not_found"
    applications.heard.pop()  # it found no deployment, so it has no usage


def wake_from_sleep(deployment: Deployment, applications: Applications, name: str) -> int:
    """Call while it sleeps; return after how many milliseconds the first token came."""
    deployment.stands("asleep")
    before = deployment.changes_until("asleep", after=0)
    heard = applications.call(name)
    assert heard.whole, heard
    sleeper = before[-1].replica_id
    waking = deployment.changes_until("asleep", after=len(before))
    assert waking == [(sleeper, "asleep", "warming"), (sleeper, "warming", "ready"), (sleeper, "ready", "asleep")]
    return heard.first_token_ms


def wake_a_crowd(deployment: Deployment, applications: Applications, name: str, callers: int, record: Record) -> None:
    """Have many call at once while it sleeps: one wake, and each is answered or told when to come again."""
    deployment.stands("asleep")
    before = deployment.changes()
    heard = applications.call_at_once(name, callers)
    told = [each for each in heard if not each.whole]
    record("crowd", f"{callers - len(told)} answered, told: {Counter((h.status, h.error_code) for h in told)}")
    record("crowd_retry_after_s", f"{Counter(each.retry_after for each in told)}")
    for each in told:
        assert (each.status, each.error_code) in TURNED_AWAY, each
        assert int(each.retry_after) >= 1, each
    assert len({each.retry_after for each in told}) > 1 or len(told) < CUTS, "all come again at one moment"
    waking = deployment.changes_until("asleep", after=len(before))
    assert [change.new for change in waking] == ["warming", "ready", "asleep"]
    assert {change.replica_id for change in waking} == {before[-1].replica_id}


def wake_fetching_nothing(deployment: Deployment, applications: Applications, name: str, tier: str, home: Path) -> int:
    """Call while no process holds the weights; one load of the files that are here already brings it back."""
    files, starts, before = files_here(home), deployment.starts(), deployment.changes()
    heard = applications.call(name)
    assert heard.whole, heard
    loading = deployment.changes_until("ready", after=len(before))
    assert [change.new for change in loading].count("loading") == 1
    assert "store" not in starts, "the trial of the version had fetched and packed it"
    assert files_here(home) == files
    expected = starts + Counter({tier: 1})
    wait_for(lambda: deployment.starts() == expected, f"one more start from {tier}, and none from elsewhere")
    return heard.first_token_ms


def record_costs(deployment: Deployment, first_token_ms: dict[str, int], record: Record) -> None:
    """Tell what callers waited and what the fleet measured, for the report."""
    for tier, spent_ms in first_token_ms.items():
        record(f"first_token_ms_{tier}", spent_ms)
    for cost in deployment.costs():
        record(f"start_ms_{cost['tier']}", f"p50 {cost['p50_ms']}, p95 {cost['p95_ms']} of {cost['samples']}")
    record("cold_process_over_asleep", round(first_token_ms["disk"] / first_token_ms["asleep"], 1))


def files_here(home: Path) -> dict[Path, tuple[int, int]]:
    """Return what the node has fetched and packed; a file made again is another one."""
    files = [path for folder in ("blobs", "versions", "runtime") for path in (home / folder).rglob("*")]
    return {path: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in files if path.is_file()}


def find_each_call_once(owner: Owner, deployment: Deployment, heard: list[Heard]) -> None:
    """Look for the calls' rows: one for each that was answered, at most a free one for each that was not."""
    answered = Counter(each.request_id for each in heard if each.whole)
    told = {each.request_id for each in heard if not each.whole}

    def settled() -> list[dict[str, Any]]:
        rows = requests_of(owner, deployment.id)
        found = Counter(row["id"] for row in rows)
        return rows if answered <= found and all(row["state"] == "settled" for row in rows) else []

    rows = wait_for(settled, f"a settled row for each of {len(answered)} calls")
    found = Counter(row["id"] for row in rows)
    assert found - answered <= Counter(told)
    assert all(row["charge_microusd"] == row["completion_tokens"] == 0 for row in rows if row["id"] in told)
    assert all(row["completion_tokens"] == row["delivered_tokens"] > 0 for row in rows if row["id"] in answered)


def requests_of(owner: Owner, deployment_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    page = owner.get(f"requests?deployment_id={deployment_id}&limit=200")["data"]
    while page:
        rows += page
        page = owner.get(f"requests?deployment_id={deployment_id}&limit=200&before={page[-1]['id']}")["data"]
    return rows


def end_everything(
    owner: Owner, applications: Applications, deployment: Deployment, name: str, version: dict[str, Any]
) -> None:
    refusal = owner.ask("DELETE", f"versions/{version['id']}")
    assert refusal.status_code == 409
    assert name in refusal.text
    owner.do("DELETE", f"deployments/{deployment.id}")
    wait_for(lambda: name not in applications.models(), "a gateway that has forgotten the deployment")
    owner.do("DELETE", f"models/{version['model_id']}/aliases/stable")
    owner.do("DELETE", f"versions/{version['id']}")


def see_the_bucket_emptied(owner: Owner, product: RunningStack, bucket: ObjectStore, version: dict[str, Any]) -> None:
    """Let the collector run as it does every minute; what no other version has is gone from the bucket."""
    others = {
        digest
        for model in owner.get("models")["data"]
        for other in owner.get(f"models/{model['id']}/versions")["data"]
        if other["deleted_at"] is None
        for digest in digests_of(other).values()
    }
    own = set(digests_of(version).values()) - others
    assert own <= blobs_in(bucket)
    # A blob is spared for ten minutes, and the collector comes once a minute: neither is waited for.
    product.query("UPDATE registry_artifact SET created_at = created_at - interval '1 hour' RETURNING sha256")
    product.query("UPDATE jobs_tick SET next_run_at = now() WHERE kind = 'registry.collect' RETURNING kind")
    wait_for(lambda: not own & blobs_in(bucket), "a bucket without the version's bytes")
    assert others <= blobs_in(bucket)
    assert not names_in(bucket, "uploads")


def blobs_in(bucket: ObjectStore) -> set[str]:
    return names_in(bucket, "sha256")


def names_in(bucket: ObjectStore, prefix: str) -> set[str]:
    """Return the objects' names; while the walk goes on, the server may remove a folder that has become empty."""
    return {name for _, _, names in os.walk(bucket.folder / BUCKET / "pagoda" / prefix) for name in names}
