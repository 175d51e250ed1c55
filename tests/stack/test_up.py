"""What ``make up``, ``make down`` and ``python -m stack manage`` say, without starting a product."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from stack import bundled_model, client, up
from stack.home import REPOSITORY, SETTINGS, Home, StackError
from stack.progress import Progress


@pytest.fixture
def home(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAGODA_HOME", str(short_dir))
    return Home.open()


@pytest.fixture
def running(home: Home) -> Iterator[Home]:
    """A supervisor of nothing at all, started with a port and a model folder of its own."""
    program = (
        "import asyncio\nfrom pathlib import Path\nfrom stack.supervisor import Supervisor\n"
        f"asyncio.run(Supervisor([], Path({str(home.root)!r}), Path({str(home.socket_path)!r}), Path('/')).run())\n"
    )
    environment = {**os.environ, "PAGODA_WEB_PORT": "18123", "REDIS_URL": "redis://:hush@127.0.0.1:1/0"}
    process = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, env=environment)
    try:
        while client.call(home, "status") is None:
            assert process.poll() is None
        yield home
    finally:
        process.terminate()
        process.wait()


def test_a_running_stack_tells_its_settings(running: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = client.running_settings(running)
    assert settings is not None
    assert (settings["PAGODA_WEB_PORT"], settings["PAGODA_GATEWAY_PORT"]) == ("18123", "8001")
    assert up._as_running(running).console_url == "http://127.0.0.1:18123"
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


def test_other_settings_than_the_running_ones_are_refused_by_name_without_their_secrets(
    running: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGODA_WEB_PORT", "9999")
    monkeypatch.setenv("PAGODA_MODEL_DIR", "/models/other")
    monkeypatch.setenv("REDIS_URL", "redis://:secret@127.0.0.1:2/0")
    with pytest.raises(StackError, match="make down first") as refusal:
        up.up(running)
    text = str(refusal.value)
    assert "PAGODA_WEB_PORT: running with 18123, asked for 9999" in text
    assert "PAGODA_MODEL_DIR: running with not set, asked for /models/other" in text
    assert "REDIS_URL" in text
    assert "hush" not in text
    assert "secret" not in text


def test_the_same_settings_and_those_not_mentioned_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAGODA_WEB_PORT", "18123")
    up._require_same({"PAGODA_WEB_PORT": "18123", "PAGODA_MODEL_DIR": "/models/mine"})


def test_manage_has_the_settings_of_the_stack_and_says_when_none_runs(home: Home) -> None:
    def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stack", "manage", *arguments]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    done = manage("shell", "--no-imports", "-c", "from django.conf import settings; print(settings.PAGODA_HOME)")
    assert done.stdout.strip() == str(home.root), done.stderr
    done = manage("no_such_command")
    assert done.returncode == 1
    assert "Pagoda is not running" in done.stderr


REAL_CLIENT = httpx.Client


class Answers(httpx.BaseTransport):
    """Plays web, gateway and fleet. ``rows`` is the fleet's table."""

    def __init__(self, deployment: dict[str, object], rows: list[dict[str, object]]) -> None:
        self.deployment = deployment
        self.rows = rows

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/replicas"):
            return httpx.Response(200, json={"replicas": self.rows})
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "mine"}]})
        return httpx.Response(200, json=self.deployment)


DETAILS = {
    "model": "mine", "deployment_id": "dep_mine", "api_key": "pgd", "api_url": "http://web/api/v1",
    "gateway_url": "http://gateway/v1",
}  # fmt: skip


def wait_for_model(
    home: Home, monkeypatch: pytest.MonkeyPatch, deployment: dict[str, object], rows: list[dict[str, object]]
) -> None:
    transport = Answers(deployment, rows)
    monkeypatch.setattr(up.httpx, "Client", lambda **_: REAL_CLIENT(transport=transport))
    up._wait_for_model(home, DETAILS, Progress())


def test_ready_means_a_replica_of_the_deployment_that_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    active: dict[str, object] = {"state": "active", "min_replicas": 1}
    other: dict[str, object] = {"deployment_id": "dep_other", "state": "ready", "cause": ""}
    mine: dict[str, object] = {"deployment_id": "dep_mine", "state": "ready", "cause": ""}
    monkeypatch.setattr(up, "_START_TIMEOUT_S", 0.0)
    with pytest.raises(StackError, match="no replica"):
        wait_for_model(home, monkeypatch, active, [other])
    wait_for_model(home, monkeypatch, active, [other, mine])
    assert "mine is ready" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("deployment", "said"),
    [
        ({"state": "paused", "min_replicas": 1}, "resume it"),
        ({"state": "active", "min_replicas": 0}, "keeps no replica"),
    ],
)
def test_what_a_person_has_put_to_rest_is_not_waited_for(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    deployment: dict[str, object],
    said: str,
) -> None:
    wait_for_model(home, monkeypatch, deployment, [])
    assert said in capsys.readouterr().out


def test_the_summary_names_the_address_of_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    details = dict.fromkeys(
        ("console_url", "user_email", "user_password", "tenant", "admin_email", "admin_password", "api_key", "model"),
        "x",
    )
    up._print_summary({**details, "gateway_url": "http://127.0.0.1:8001/v1"}, Progress())
    assert "API       http://127.0.0.1:8001/v1\n" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_line_is_never_wider_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", Terminal())
    Progress().waiting("waiting for a model", "loading " + "9" * 200)
    assert isinstance(sys.stdout, Terminal)
    assert len(sys.stdout.getvalue().removeprefix("\r\033[K")) == 39


def test_elsewhere_only_changes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for percent in range(100):
        progress.waiting("waiting: loading", f"{percent} %")
    progress.waiting("waiting: warming")
    assert capsys.readouterr().out.splitlines() == ["  … waiting: loading", "  … waiting: warming"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_model_fetch_that_is_stopped_prints_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    made: list[Path] = []

    def stopped(working: Path, *_others: object) -> None:
        made.append(working)
        os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(bundled_model, "_make", stopped)
    monkeypatch.setattr(sys, "argv", ["bundled_model", str(tmp_path / "models" / "m")])
    try:
        assert bundled_model.main() == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "stopped" in capsys.readouterr().err
    assert not made[0].exists()
