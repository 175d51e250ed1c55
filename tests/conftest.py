"""Services that tests share: a real PostgreSQL and a real Redis, started once a run, on free ports."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from ports import free_port
from running_stack import RunningStack, running_stack

from stack.postgres import Postgres
from stack.redis import Redis

pytest_plugins = ["django_fixtures"]

_BUSY = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("tests", max_examples=50, derandomize=True, **_BUSY)  # the same each time: no run fails alone
settings.register_profile("soak", max_examples=500, **_BUSY)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def services_dir() -> Iterator[Path]:
    """A short path (Unix sockets allow 107 characters) that user ``postgres`` may enter."""
    folder = Path(tempfile.mkdtemp(prefix="pgd-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(services_dir: Path) -> Iterator[Postgres]:
    """The run's PostgreSQL. Tests that crash a server start their own."""
    with Postgres(services_dir / "pg", free_port(), services_dir / "pg.log", durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(services_dir: Path) -> Iterator[Redis]:
    """The run's Redis. Tests that crash or flush a server start their own."""
    with Redis(free_port(), services_dir / "redis.log") as server:
        yield server


@pytest.fixture(scope="session")
def product() -> Iterator[RunningStack]:
    """The run's whole product, as ``make up`` starts it. Tests that break parts of it leave it mended."""
    with running_stack() as running:
        yield running


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A temporary folder whose path is short enough for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="pgd-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
