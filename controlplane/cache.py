"""Django's cache on Redis, which may be away: then each process keeps its own until Redis is back.

What is cached here are the counts that slow down guessing at sign-in. Without them sign-in would have to be refused, or
left open to guessing; with a count per process it goes on, a little more lenient.
"""

from collections.abc import Callable
from typing import Any

from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache, RedisCacheClient
from django.utils.functional import cached_property
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError


class _RedisOrLocal:
    """Calls the one client, and the other where the first cannot be reached. Both take the same arguments."""

    def __init__(self, redis: RedisCacheClient, local: LocMemCache) -> None:
        self._redis = redis
        self._local = local

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:  # noqa: ANN401
            try:
                return getattr(self._redis, name)(*arguments)
            except (RedisConnectionError, RedisTimeoutError):
                return getattr(self._local, name)(*arguments)

        return call


class RedisOrLocalCache(RedisCache):
    """Django's Redis backend with a stand-in in this process's memory."""

    @cached_property
    def _cache(self) -> Any:  # noqa: ANN401
        return _RedisOrLocal(super()._cache, LocMemCache("pagoda", {}))
