"""What the product consists of on one machine, and what each part needs before it can start."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from stack.home import Home, require_postgres_account
from stack.postgres import APP_ROLE, OWNER_ROLE, Postgres
from stack.redis import Redis
from stack.supervisor import Service

DATABASE = "pagoda"


@dataclass(frozen=True)
class Plan:
    """The services of a stack and the environment they run in. ``ports`` are those the services listen on."""

    services: list[Service]
    environment: dict[str, str]
    ports: list[str]


def plan(home: Home) -> Plan:
    """Decide what to run: servers that ``DATABASE_URL`` and ``REDIS_URL`` name are used and not started."""
    services: list[Service] = []
    ports = ["web", "gateway", "fleet"]

    database_url = os.environ.get("DATABASE_URL", "")
    owner_url = os.environ.get("DATABASE_OWNER_URL", "") or database_url
    if database_url:
        if owner_url == database_url:
            database_url = with_role(owner_url, APP_ROLE, home.secret("PAGODA_INTERNAL_SECRET"))
    else:
        require_postgres_account()
        postgres = Postgres(home.postgres_dir, home.ports.postgres, home.root / "logs" / "postgres.log")
        postgres.prepare()
        database_url, owner_url = postgres.url(APP_ROLE, DATABASE), postgres.url(OWNER_ROLE, DATABASE)
        services.append(
            Service("postgres", postgres.command(), ready=_in_thread(postgres.answers), stop_signal=signal.SIGINT)
        )
        ports.append("postgres")

    redis_url = os.environ.get("REDIS_URL", "")
    if not redis_url:
        redis = Redis(home.ports.redis, home.root / "logs" / "redis.log")
        redis_url = redis.url
        services.append(Service("redis", redis.command(), ready=_in_thread(redis.answers)))
        ports.append("redis")

    embedded = tuple(service.name for service in services)
    services += _product(home, embedded)
    return Plan(services, home.environment(database_url, owner_url, redis_url), ports)


def with_role(url: str, role: str, password: str) -> str:
    """Return ``url`` with another user and password."""
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    netloc = f"{role}:{quote(password, safe='')}@{host}" + (f":{parts.port}" if parts.port else "")
    return urlunsplit(parts._replace(netloc=netloc))


def _product(home: Home, embedded: tuple[str, ...]) -> list[Service]:
    python = sys.executable
    celery = [python, "-m", "celery", "-A", "controlplane.celery"]
    web = [python, "-m", "uvicorn", "controlplane.asgi:application", "--host", "127.0.0.1"]
    after_migration = (*embedded, "database")
    return [
        Service("database", [python, "-m", "stack.database"], needs=embedded, once=True),
        Service("bootstrap", [python, "-m", "stack.bootstrap"], needs=after_migration, once=True),
        Service(
            "web",
            [*web, "--port", str(home.ports.web), "--no-access-log"],
            needs=after_migration,
            ready=_answers(f"{home.console_url}/healthz"),
        ),
        Service("publisher", [python, "manage.py", "publish_catalog"], needs=after_migration),
        Service(
            "jobs",
            [*celery, "worker", "--pool", "threads", "--concurrency", "2", "--loglevel", "WARNING"],
            needs=after_migration,
        ),
        Service(
            "beat",
            [*celery, "beat", "--loglevel", "WARNING", "--schedule", str(home.run_dir / "beat-schedule")],
            needs=after_migration,
        ),
        Service(
            "gateway",
            [python, "-m", "dataplane.gateway"],
            needs=embedded,
            ready=_answers(f"{home.gateway_url}/health"),
            stop_timeout_s=40.0,
        ),
        Service(
            "fleet",
            [python, "-m", "dataplane.fleet"],
            needs=embedded,
            ready=_answers(f"http://127.0.0.1:{home.ports.fleet}/health"),
            stop_timeout_s=40.0,
        ),
    ]


def _in_thread(question: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return await asyncio.to_thread(question)

    return ask


def _answers(url: str) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        try:
            async with httpx.AsyncClient(timeout=2.0) as client:
                return (await client.get(url)).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    return ask
