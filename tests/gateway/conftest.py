"""Fixtures of the gateway's tests: one event loop kind, a fresh world, a Redis whose keys no other test shares."""

import functools
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from gateway_world import World

from stack.redis import Redis


@pytest.fixture(scope="session", autouse=True)
def _certificates_read_once() -> Iterator[None]:
    """Each HTTP client reads the world's certificates: a third of a second a test, and nothing here speaks TLS."""
    with pytest.MonkeyPatch.context() as patch:
        read = httpx._transports.default.create_ssl_context
        patch.setattr(httpx._transports.default, "create_ssl_context", functools.cache(read))
        yield


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def clean_redis(redis_server: Redis) -> str:
    """The URL of the run's Redis with nothing of the gateway's in it."""
    with redis.Redis.from_url(redis_server.url) as client:
        for key in client.scan_iter("pagoda:limits:*"):
            client.delete(key)
    return redis_server.url


@pytest.fixture
def home(short_dir: Path) -> Path:
    return short_dir
