"""The tiers with the real worker, and its version in a bucket: what scripted workers cannot prove."""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psutil
from control_double import ControlDouble
from fleet_harness import FleetProcess, Home, deployment, processes_of, rows
from object_store import BUCKET, SECRET_KEY, ObjectStore, running_object_store
from test_fleet_with_real_workers import REAL, SMALL, generate, tiny_files

from dataplane.contracts.catalog import IdlePolicy, VersionEntry
from dataplane.contracts.replica import ReplicaReport, ReplicaState, ReplicaTable, Tier
from stack.redis import Redis

SLEEPY = IdlePolicy(asleep_after_s=1)
WARM = IdlePolicy(warm_after_s=1)


def publish(fleet: FleetProcess, version: VersionEntry, idle: IdlePolicy) -> None:
    fleet.publish(deployment("tiny", version, count=0, engine=SMALL, idle=idle), versions=[version])


def answered_once(fleet: FleetProcess) -> tuple[ReplicaReport, str]:
    """Have a caller wait, and answer it; from then on nobody waits, and idle it soon rests again."""
    row = fleet.wait_called("tiny")
    text = generate(row)
    fleet.call()
    return row, text


def seen(fleet: FleetProcess, state: ReplicaState, tier: Tier) -> ReplicaReport:
    def wanted(table: ReplicaTable) -> list[ReplicaReport]:
        return rows(table, state=state, tier=tier)

    return wanted(fleet.wait(lambda table: wanted(table) != []))[0]


def bucket_with(home: Home, folder: Path, opened: ExitStack) -> ObjectStore:
    """Move the home's store into a bucket of a running server."""
    store = opened.enter_context(running_object_store(folder))
    shutil.move(home.path / "store", store.folder / BUCKET / "pagoda")
    return store


def test_sleep_keeps_a_models_answers_and_a_second_start_fetches_and_converts_nothing(redis_server: Redis) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pgd-", dir="/tmp") as folder,
        ExitStack() as bucket,
        ControlDouble() as control,
    ):
        home = Home(Path(folder) / "home")
        version = home.version("ver-1", tiny_files(home))
        store = bucket_with(home, Path(folder) / "s3", bucket)
        with FleetProcess(home, redis_server.url, control, REAL, **store.environment) as fleet:
            publish(fleet, version, SLEEPY)
            first, text = answered_once(fleet)
            assert all(SECRET_KEY not in str(p.environ()) for p in psutil.Process(fleet.pid).children(recursive=True))
            (packed,) = (home.path / "runtime").glob(f"{version.digest}-*")
            before = packed.stat()

            assert seen(fleet, ReplicaState.ASLEEP, Tier.ASLEEP).replica_id == first.replica_id
            woken, same = answered_once(fleet)
            assert (woken.replica_id, same) == (first.replica_id, text)

            publish(fleet, version, WARM)
            seen(fleet, ReplicaState.COLD, Tier.WARM)
            bucket.close()  # from here on there is nothing to fetch from
            again, same = answered_once(fleet)
            assert again.replica_id != first.replica_id
            assert same == text
            assert (packed.stat().st_ino, packed.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        costs = {cost.tier: cost.samples for cost in control.reports[-1].costs["dep-tiny"]}
        assert costs == {Tier.ASLEEP: 1, Tier.WARM: 1, Tier.STORE: 1}
        assert processes_of(home) == []
