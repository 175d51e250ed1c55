import pytest

from dataplane.fleet.settings import SettingsError, read

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
        ("PAGODA_DRAIN_S", "nan"),
        ("PAGODA_HANG_S", "0"),
        ("PAGODA_HOME", "/tmp/" + "x" * 80),
    ],
)
def test_a_senseless_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read(GOOD | {name: value})
