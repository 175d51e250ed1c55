"""What the processes of a stack may know, and what other users of the machine may not."""

import json
import stat
from pathlib import Path

import pytest
import redis

from dataplane.worker.engine_client import engine_environment
from stack import services
from stack.home import Home
from stack.redis import Redis
from tests.ports import free_port


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("PAGODA_HOME", str(tmp_path))
    return Home.open()


def test_no_secret_serves_two_purposes_and_only_the_owner_reads_them(home: Home) -> None:
    stored = json.loads((home.root / "secrets.json").read_text())
    assert len(set(stored.values())) == len(stored)
    assert {"redis_password", "app_role_password", "PAGODA_INTERNAL_SECRET"} <= stored.keys()
    assert stat.S_IMODE((home.root / "secrets.json").stat().st_mode) == 0o600


def test_a_folder_of_an_earlier_version_keeps_its_secrets_and_gets_those_it_lacks(home: Home) -> None:
    path = home.root / "secrets.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({name: text for name, text in stored.items() if name != "redis_password"}))
    opened = Home.open()
    assert opened.secret("PAGODA_INTERNAL_SECRET") == stored["PAGODA_INTERNAL_SECRET"]
    assert opened.secret("redis_password") not in ("", stored["redis_password"])
    assert json.loads(path.read_text())["redis_password"] == opened.secret("redis_password")


def test_who_has_no_password_can_neither_read_nor_write_the_bus(tmp_path: Path) -> None:
    server = Redis(free_port(), tmp_path / "redis.log", password="ab" * 20)
    assert server._password not in " ".join(server.command())
    with server:
        with redis.Redis.from_url(server.url) as known:
            assert known.set("pagoda:catalog", "{}")
        with redis.Redis(port=server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.get("pagoda:catalog")
    assert stat.S_IMODE((tmp_path / "redis.conf").stat().st_mode) == 0o600


def test_an_engine_is_not_given_the_secret_of_internal_calls() -> None:
    environment = engine_environment({"PAGODA_INTERNAL_SECRET": "s", "PATH": "/bin", "OMP_NUM_THREADS": "1"})
    assert "PAGODA_INTERNAL_SECRET" not in environment
    assert environment["PATH"] == "/bin"
    assert environment["OMP_NUM_THREADS"] == "1"


def test_a_gateway_cannot_reach_the_object_store(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"AWS_SECRET_ACCESS_KEY": "s", "AWS_ACCESS_KEY_ID": "k", "PAGODA_STORE_URL": "s3://models/pagoda"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    plan = services._product(home, services.Servers("", "", "", None, None), ())
    knowing = {service.name for service in plan if keys.items() <= service.environment.items()}
    assert knowing == {"database", "bootstrap", "web", "publisher", "jobs", "beat", "fleet"}
    (gateway,) = [service for service in plan if service.name == "gateway"]
    assert not keys.keys() & gateway.environment.keys()
