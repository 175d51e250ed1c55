import pytest
from gateway_world import PEPPER

from dataplane.environment import SettingsError
from dataplane.gateway.settings import read

WHOLE = {
    "PAGODA_HOME": "/tmp/pagoda",
    "REDIS_URL": "redis://localhost/0",
    "PAGODA_CONTROL_URL": "http://localhost:1",
    "PAGODA_FLEET_URL": "http://localhost:2",
    "PAGODA_INTERNAL_SECRET": "s",
    "PAGODA_KEY_PEPPERS": f"p1:{PEPPER.hex()}",
    "PAGODA_GATEWAY_PORT": "8080",
}


def test_a_whole_environment_is_read() -> None:
    settings = read(WHOLE)
    assert (settings.port, settings.host, settings.peppers) == (8080, "127.0.0.1", {"p1": PEPPER})


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_any_one_of_them_the_start_is_refused_by_name(name: str, value: str | None) -> None:
    environ = {key: text for key, text in WHOLE.items() if key != name} | ({name: value} if value is not None else {})
    with pytest.raises(SettingsError, match=name):
        read(environ)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REDIS_URL", "localhost:6379"),
        ("PAGODA_CONTROL_URL", "localhost"),
        ("PAGODA_KEY_PEPPERS", "p1:abcd"),
        ("PAGODA_KEY_PEPPERS", "p1"),
        ("PAGODA_GATEWAY_PORT", "http"),
        ("PAGODA_GATEWAY_PORT", "70000"),
        ("PAGODA_GATEWAY_PORT", "²"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read(WHOLE | {name: value})


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(SettingsError) as refusal:
        read({})
    assert all(name in str(refusal.value) for name in WHOLE)
