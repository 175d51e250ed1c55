"""What the control plane stands on and what stands beside it, as it answers now."""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx
import msgspec
from django.conf import settings
from django.db import connection
from django.utils import timezone
from redis import Redis, RedisError

_TIMEOUT_S = 1.0


class _GatewayHealth(msgspec.Struct, frozen=True):
    """The part of a gateway's ``GET /health`` that is told here."""

    status: str
    catalog: int | None = None
    away: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said. ``since`` is when it started, None where it did not answer; then ``fault`` says why."""

    since: datetime | None
    took_ms: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """What the gateway that took the call said.

    Args:
        took_ms: how long it took, in milliseconds.
        catalog: the number of the catalog in force there; None where it has none, or did not answer.
        away: what it cannot reach.
        fault: why there is no answer; empty where there is one.
    """

    took_ms: int
    catalog: int | None = None
    away: tuple[str, ...] = ()
    fault: str = ""


def ask_postgres() -> Answer:
    """Ask PostgreSQL since when it runs.

    Raises:
        DatabaseError: it is away, and so is every page.
    """
    began_s = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_postmaster_start_time()")
        row = cursor.fetchone()
    return Answer(None if row is None else row[0], _since_ms(began_s))


def ask_redis() -> Answer:
    """Ask Redis since when it runs; that it is away is an answer, too."""
    began_s = time.monotonic()
    try:
        with Redis.from_url(settings.REDIS_URL, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S) as client:
            up_s = int(client.info("server")["uptime_in_seconds"])
    except RedisError as error:
        return Answer(None, _since_ms(began_s), type(error).__name__)
    return Answer(timezone.now() - timedelta(seconds=up_s), _since_ms(began_s))


def ask_gateway() -> GatewayAnswer:
    """Ask a gateway which catalog it applies, at the address that applications call: one of several answers."""
    began_s = time.monotonic()
    try:
        answer = httpx.get(f"{settings.PAGODA_GATEWAY_URL}/health", timeout=_TIMEOUT_S)
        said = msgspec.json.decode(answer.content, type=_GatewayHealth)
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        return GatewayAnswer(_since_ms(began_s), fault=type(error).__name__)
    fault = "" if answer.status_code == httpx.codes.OK else said.status
    return GatewayAnswer(_since_ms(began_s), said.catalog, said.away, fault)


def _since_ms(began_s: float) -> int:
    return round((time.monotonic() - began_s) * 1000)
