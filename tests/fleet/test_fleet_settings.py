import pytest

from dataplane.contracts.blob_store import BucketAddress
from dataplane.environment import SettingsError
from dataplane.fleet import resources
from dataplane.fleet.settings import read

GOOD = {
    "PAGODA_HOME": "/tmp/pgd",
    "REDIS_URL": "redis://127.0.0.1/0",
    "PAGODA_CONTROL_URL": "http://127.0.0.1:8000",
    "PAGODA_INTERNAL_SECRET": "secret",
    "PAGODA_CACHE_SALT_SECRET": "ab" * 32,
    "PAGODA_FLEET_PORT": "8002",
}


def test_the_defaults_are_one_warm_idle_process_and_half_a_minute_to_drain() -> None:
    settings = read(GOOD)
    assert (settings.policy.warm_idle_floor, settings.drain_s, settings.port) == (1, 30.0, 8002)


def test_a_deep_home_keeps_its_sockets_in_a_shorter_folder() -> None:
    deep = GOOD | {"PAGODA_HOME": "/tmp/" + "x" * 80, "PAGODA_RUN_DIR": "/tmp/pgd-run"}
    assert str(read(deep).run_dir) == "/tmp/pgd-run"
    assert read(GOOD).run_dir == read(GOOD).home / "run"


def test_the_store_is_a_folder_of_the_home_another_folder_or_a_bucket_whose_copies_are_kept_in_the_home() -> None:
    home = read(GOOD).home
    assert (read(GOOD).blobs_dir, read(GOOD).bucket) == (home / "store", None)
    elsewhere = read(GOOD | {"PAGODA_STORE_URL": "file:///srv/my%20store"})
    assert (str(elsewhere.blobs_dir), elsewhere.bucket) == ("/srv/my store", None)
    far = read(GOOD | {"PAGODA_STORE_URL": "s3://models/a/b/", "PAGODA_S3_ENDPOINT": "http://127.0.0.1:9000"})
    assert (far.blobs_dir, far.bucket) == (home / "blobs", BucketAddress("models", "a/b", "http://127.0.0.1:9000"))
    assert read(GOOD | {"PAGODA_STORE_URL": "s3://models"}).bucket == BucketAddress("models", "", None)


def test_sleepers_may_hold_what_was_said_or_a_quarter_of_the_memory() -> None:
    assert read(GOOD | {"PAGODA_ASLEEP_MEMORY_MB": "7"}).policy.asleep_budget_bytes == 7 * 2**20
    share = read(GOOD).policy.asleep_budget_bytes / resources.memory_bytes()
    assert 0.24 < share <= 0.25


@pytest.mark.parametrize("name", sorted(GOOD))
@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_variable_is_named(name: str, value: str | None) -> None:
    environ = {key: text for key, text in GOOD.items() if key != name} | ({} if value is None else {name: value})
    with pytest.raises(SettingsError, match=name):
        read(environ)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PAGODA_CACHE_SALT_SECRET", "zz"),
        ("PAGODA_CACHE_SALT_SECRET", "ab" * 31),
        ("PAGODA_FLEET_PORT", "0"),
        ("PAGODA_FLEET_PORT", "80.5"),
        ("PAGODA_FLEET_PORT", "http"),
        ("PAGODA_WARM_IDLE_FLOOR", "-1"),
        ("PAGODA_WARM_IDLE_FLOOR", "1.5"),
        ("PAGODA_MAX_PROCESSES", "0"),
        ("PAGODA_ASLEEP_MEMORY_MB", "-1"),
        ("PAGODA_STORE_URL", "s3://"),
        ("PAGODA_STORE_URL", "file://"),
        ("PAGODA_STORE_URL", "https://store/"),
        ("PAGODA_DRAIN_S", "nan"),
        ("PAGODA_HANG_S", "0"),
        ("PAGODA_PROBE_SHARE", "0.6"),
        ("PAGODA_HOME", "/tmp/" + "x" * 80),
    ],
)
def test_a_senseless_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read(GOOD | {name: value})
