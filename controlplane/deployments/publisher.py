"""Pushes the catalog to Redis the moment it changes: the fast one of the two paths on which a revocation travels.

A NOTIFY wakes it; every few seconds it looks all the same, in case one was missed or Redis was flushed. Redis and
PostgreSQL may go away and come back at any time.
"""

import random
import time

import msgspec
import psycopg
import structlog
from django.db import DatabaseError, InterfaceError, connection
from redis import Redis, RedisError

from controlplane.deployments import catalog
from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Catalog
from tenants.actor import system_actor
from tenants.outbox import CHANNEL

_ACTOR = system_actor("publisher")
_LOOK_AGAIN_S = 2.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_log = structlog.get_logger(__name__)


class _Head(msgspec.Struct, frozen=True):
    """The one field of a snapshot that tells it from others."""

    number: int


class Publisher:
    """Keeps the Redis key of the catalog equal to the truth, and tells the deltas on the channel.

    Args:
        database_url: for LISTEN; the rows are read through Django's own connection.
        redis: a client with short timeouts.
        look_again_s: the longest time between two looks.
    """

    def __init__(self, *, database_url: str, redis: Redis, look_again_s: float = _LOOK_AGAIN_S) -> None:
        self._database_url = database_url
        self._redis = redis
        self._look_again_s = look_again_s
        self._published = contract.empty()
        self._pause_s = _FIRST_PAUSE_S

    def run(self) -> None:
        """Publish until the process is told to end. What is away is waited for, with growing pauses."""
        while True:
            try:
                self._listen()
            except (psycopg.Error, DatabaseError, InterfaceError, RedisError, OSError) as error:
                _log.warning("publisher.interrupted", error=str(error).strip(), again_in_s=round(self._pause_s, 1))
                connection.close()
                # Jitter: all that waited for the same restart must not come back in the same instant.
                time.sleep(self._pause_s * random.uniform(0.5, 1.0))  # noqa: S311
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _listen(self) -> None:
        with psycopg.connect(self._database_url, autocommit=True, connect_timeout=5) as listener:
            # Listen before looking: a change committed between the two is then heard, never missed.
            listener.execute(f"LISTEN {CHANNEL}")
            while True:
                self.publish()
                self._pause_s = _FIRST_PAUSE_S
                for _ in listener.notifies(timeout=self._look_again_s, stop_after=1):
                    pass

    def publish(self) -> bool:
        """Bring Redis up to date; return whether anything had to be written.

        Raises:
            DatabaseError: PostgreSQL is away.
            RedisError: Redis is away; what was not written is written the next time.
        """
        body = catalog.latest(actor=_ACTOR, unless_number=self._published.number)
        new = self._published if body is None else contract.decode(body)
        if body is None and self._redis_number() == new.number:
            return False
        # The key first: a reader to whom the delta does not apply then finds the whole snapshot.
        self._redis.set(contract.REDIS_KEY, contract.encode(new) if body is None else body)
        if body is not None:
            self._tell(new)
        _log.info("publisher.published", number=new.number, repaired=body is None)
        return True

    def _tell(self, new: Catalog) -> None:
        delta = contract.diff(self._published, new)
        self._redis.publish(contract.REDIS_CHANNEL, contract.encode(delta))
        self._published = new

    def _redis_number(self) -> int | None:
        """The number of the snapshot in Redis: none after a flush, another where two publishers overtook each other."""
        raw = self._redis.get(contract.REDIS_KEY)
        try:
            return msgspec.json.decode(raw, type=_Head).number if isinstance(raw, bytes) else None
        except msgspec.DecodeError:
            return None
