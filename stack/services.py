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
    """The services of a stack, and the ports they listen on."""

    services: list[Service]
    ports: list[str]


@dataclass(frozen=True)
class Servers:
    """The connections of the product, and the servers of our own that they need."""

    database_url: str
    owner_url: str
    redis_url: str
    postgres: Postgres | None
    redis: Redis | None


def plan(home: Home) -> Plan:
    """Decide what to run: servers that ``DATABASE_URL`` and ``REDIS_URL`` name are used and not started."""
    servers = _servers(home)
    embedded = _embedded(servers)
    names = tuple(service.name for service in embedded)
    return Plan([*embedded, *_product(home, servers, names)], ["web", "gateway", "fleet", *names])


def operator_environment(home: Home) -> dict[str, str]:
    """Return the environment of ``manage.py``: the control plane's, and the connection that owns the tables."""
    servers = _servers(home)
    return {**_control(home, servers), "DATABASE_OWNER_URL": servers.owner_url}


def _servers(home: Home) -> Servers:
    postgres = redis = None
    database_url = os.environ.get("DATABASE_URL", "")
    owner_url = os.environ.get("DATABASE_OWNER_URL", "") or database_url
    if not database_url:
        require_postgres_account()
        postgres = Postgres(home.postgres_dir, home.ports.postgres, home.root / "logs" / "postgres.log")
        database_url, owner_url = postgres.url(APP_ROLE, DATABASE), postgres.url(OWNER_ROLE, DATABASE)
    elif owner_url == database_url:
        database_url = with_role(owner_url, APP_ROLE, home.secret("app_role_password"))

    redis_url = os.environ.get("REDIS_URL", "")
    if not redis_url:
        redis = Redis(
            home.ports.redis,
            home.root / "logs" / "redis.log",
            password=home.secret("redis_password"),
            config_path=home.root / "redis.conf",
        )
        redis_url = redis.url
    return Servers(database_url, owner_url, redis_url, postgres, redis)


def _embedded(servers: Servers) -> list[Service]:
    """Prepare the servers of our own and return them as services."""
    services: list[Service] = []
    if servers.postgres is not None:
        servers.postgres.prepare()
        ready = _in_thread(servers.postgres.answers)
        command = servers.postgres.command()
        services.append(Service("postgres", command, os.environ, ready=ready, stop_signal=signal.SIGINT))
    if servers.redis is not None:
        servers.redis.prepare()
        ready = _in_thread(servers.redis.answers)
        services.append(Service("redis", servers.redis.command(), os.environ, ready=ready))
    return services


def with_role(url: str, role: str, password: str) -> str:
    """Return ``url`` with another user and password."""
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    netloc = f"{role}:{quote(password, safe='')}@{host}" + (f":{parts.port}" if parts.port else "")
    return urlunsplit(parts._replace(netloc=netloc))


def _control(home: Home, servers: Servers) -> dict[str, str]:
    return home.environment(
        "PAGODA_SECRET_KEY", "PAGODA_KEY_PEPPERS", "PAGODA_INTERNAL_SECRET", "PAGODA_PLAYGROUND_SECRET",
        "PAGODA_WEBHOOK_SECRET", DATABASE_URL=servers.database_url, REDIS_URL=servers.redis_url, **home.object_store(),
    )  # fmt: skip


def _product(home: Home, servers: Servers, embedded: tuple[str, ...]) -> list[Service]:
    python = sys.executable
    celery = [python, "-m", "celery", "-A", "controlplane.celery"]
    web = [
        python, "-m", "uvicorn", "controlplane.asgi:application", "--host", "127.0.0.1", "--no-access-log",
        "--http", "dataplane.http_server.protocol:BoundedProtocol",
    ]  # fmt: skip
    control = _control(home, servers)
    owner = {**control, "DATABASE_OWNER_URL": servers.owner_url}
    gateway = home.environment("PAGODA_KEY_PEPPERS", "PAGODA_INTERNAL_SECRET", REDIS_URL=servers.redis_url)
    fleet = home.environment(
        "PAGODA_CACHE_SALT_SECRET", "PAGODA_INTERNAL_SECRET", REDIS_URL=servers.redis_url, **home.object_store()
    )
    migrated = (*embedded, "database")
    return [
        Service("database", [python, "-m", "stack.database"], owner, needs=embedded, once=True),
        Service("bootstrap", [python, "-m", "stack.bootstrap"], control, needs=migrated, once=True),
        Service(
            "web",
            [*web, "--port", str(home.ports.web)],
            control,
            needs=migrated,
            ready=_answers(f"{home.console_url}/healthz"),
        ),
        Service("publisher", [python, "manage.py", "publish_catalog"], control, needs=migrated),
        Service(
            "jobs",
            [*celery, "worker", "--pool", "threads", "--concurrency", "4", "--loglevel", "WARNING"],
            control,
            needs=migrated,
        ),
        Service(
            "beat",
            [*celery, "beat", "--loglevel", "WARNING"],
            control,
            needs=migrated,
        ),
        Service(
            "gateway",
            [python, "-m", "dataplane.gateway"],
            gateway,
            needs=embedded,
            ready=_answers(f"{home.gateway_url}/health"),
            stop_timeout_s=40.0,
        ),
        Service(
            "fleet",
            [python, "-m", "dataplane.fleet"],
            fleet,
            needs=embedded,
            ready=_answers(f"{home.fleet_url}/health"),
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
            async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
                return (await client.get(url)).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    return ask
