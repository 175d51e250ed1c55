"""A whole product of one's own: ``make up`` with its own state folder and ports, for tests from outside."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
from ports import free_ports
from psycopg.rows import dict_row

from stack.home import BUNDLED_MODEL, REPOSITORY
from stack.postgres import SUPERUSER_ROLE, Postgres

MODEL_DIR = Path(os.environ.get("PAGODA_MODEL_DIR", REPOSITORY / "var" / "models" / BUNDLED_MODEL))
_PORTS = ("web", "gateway", "fleet", "postgres", "redis")
_DEADLINE_S = 120.0


class RunningStack:
    """A running product. ``details`` is its ``up.json``; ``environment`` is set besides what every product here has."""

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home = home
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PAGODA_", "DJANGO_"))},
            "PAGODA_HOME": str(home),
            "PAGODA_MODEL_DIR": str(MODEL_DIR),
            "PAGODA_PROBE_SHARE": "0",  # a test that counts an engine's steps is to count its own
            **{f"PAGODA_{name.upper()}_PORT": str(port) for name, port in self._ports.items()},
            **environment,
        }
        for name in ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL"):
            self.environment.pop(name, None)
        self.details: dict[str, str] = {}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``python -m stack ARGUMENTS`` for this home."""
        return subprocess.run(
            [sys.executable, "-m", "stack", *arguments],
            cwd=REPOSITORY, env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def up(self) -> str:
        """Start it, and return what was printed."""
        done = self.command("up")
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        self.details = json.loads((self.home / "up.json").read_text())
        return done.stdout

    def down(self) -> str:
        """End it."""
        done = self.command("down")
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def redis_url(self) -> str:
        """Of the embedded Redis."""
        password = json.loads((self.home / "secrets.json").read_text())["redis_password"]
        return f"redis://:{password}@127.0.0.1:{self._ports['redis']}/0"

    def query(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Read the database as its superuser, who sees every tenant's rows."""
        server = Postgres(self.home / "postgres", self._ports["postgres"], self.home / "logs" / "unused.log")
        with psycopg.connect(server.url(SUPERUSER_ROLE, "pagoda"), row_factory=dict_row) as connection:
            return connection.execute(statement, values).fetchall()

    def replicas(self) -> list[dict[str, Any]]:
        """Return the fleet's table."""
        secret = json.loads((self.home / "secrets.json").read_text())["PAGODA_INTERNAL_SECRET"]
        url = f"http://127.0.0.1:{self._ports['fleet']}/replicas"
        answer = httpx.get(url, headers={"Authorization": f"Bearer {secret}"}, timeout=10)
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()["replicas"]
        return found

    def serving_replica(self, *, other_than: str = "") -> dict[str, Any]:
        """Return the replica that serves the model, waiting until it is ready."""

        def ready() -> dict[str, Any] | None:
            rows = [row for row in self.replicas() if row["state"] == "ready"]
            return next((row for row in rows if row["replica_id"] != other_than), None)

        found: dict[str, Any] = wait_for(ready, "a ready replica")
        return found


def wait_for(question: Callable[[], Any], what: str, deadline_s: float = _DEADLINE_S) -> Any:
    """Ask until the answer is true, and return it; the deadline is for a broken product, not for a slow machine."""
    end_s = time.monotonic() + deadline_s
    while True:
        answer = question()
        if answer:
            return answer
        assert time.monotonic() < end_s, f"waited {deadline_s:.0f} s for {what}"
        time.sleep(0.05)


@contextmanager
def running_stack(**environment: str) -> Iterator[RunningStack]:
    """Start a product in a new folder, and end it with its folder."""
    home = Path("/tmp") / f"pgd-{secrets.token_hex(4)}"
    stack = RunningStack(home, environment)
    try:
        stack.up()
        yield stack
    finally:
        stack.command("down")
        subprocess.run(["rm", "-rf", str(home)], check=True)
