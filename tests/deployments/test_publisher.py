"""The publisher against a real PostgreSQL and a real Redis, as the process that ``make up`` starts."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from django_fixtures import DATABASE, process_environment
from domain import deploy
from ports import free_port
from redis import Redis

from controlplane.deployments.publisher import Publisher
from dataplane.contracts import catalog as contract
from stack.postgres import APP_ROLE, Postgres
from stack.redis import Redis as RedisServer
from tenants.actor import member_actor
from tenants.services import keys

WAIT_S = 20


@contextmanager
def publisher_process(postgres: Postgres, redis_url: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = process_environment(postgres, redis_url) | {"PAGODA_HOME": "/nonexistent"}
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "manage.py", "publish_catalog"], cwd=root, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(timeout=10) == 0


@pytest.fixture
def own_redis(services_dir: Path) -> Iterator[RedisServer]:
    with RedisServer(free_port(), services_dir / "own-redis.log") as server:
        yield server


class Listener:
    """A gateway's ears: the deltas of the channel in order."""

    def __init__(self, client: Redis) -> None:
        self._channel = client.pubsub(ignore_subscribe_messages=True)
        self._channel.subscribe(contract.REDIS_CHANNEL)
        self._channel.get_message(timeout=WAIT_S)

    def next_delta(self) -> contract.CatalogDelta:
        while True:
            message = self._channel.get_message(timeout=WAIT_S)
            assert message is not None, "no delta was published"
            if message["type"] == "message":
                return contract.decode_delta(message["data"])

    def close(self) -> None:
        self._channel.close()


def snapshot(client: Redis) -> contract.Catalog:
    return contract.decode(client.get(contract.REDIS_KEY))


def test_a_change_is_pushed_as_key_and_delta(committed, personas, postgres, own_redis):
    alice = member_actor(personas.alice, "acme")
    with Redis.from_url(own_redis.url) as client:
        listener = Listener(client)
        with publisher_process(postgres, own_redis.url):
            first = contract.apply(contract.empty(), listener.next_delta())
            assert first == snapshot(client)
            issued = keys.issue_key(actor=alice, name="app")
            second = contract.apply(first, listener.next_delta())
            assert issued.key.lookup in second.keys
            assert second == snapshot(client)
            keys.revoke_key(actor=alice, key_id=issued.key.id)
            assert contract.apply(second, listener.next_delta()).keys == {}
            assert snapshot(client).keys == {}
        listener.close()


def test_it_comes_back_after_redis_and_after_postgresql(committed, personas, postgres, own_redis):
    with Redis.from_url(own_redis.url) as client, publisher_process(postgres, own_redis.url):
        listener = Listener(client)
        deploy(personas.acme, name="one")
        while not client.exists(contract.REDIS_KEY) or len(snapshot(client).deployments) != 1:
            listener.next_delta()
        listener.close()
        own_redis.kill()
        deploy(personas.acme, name="two")
        own_redis.start()
        listener = Listener(client)
        while not client.exists(contract.REDIS_KEY) or len(snapshot(client).deployments) != 2:
            listener.next_delta()
        end_sessions(postgres)
        deploy(personas.acme, name="three")
        while len(snapshot(client).deployments) != 3:
            listener.next_delta()
        listener.close()


def end_sessions(postgres: Postgres) -> None:
    """Cut every session of the application, as a restart of the server would; the test's own comes back by itself."""
    connection.close()
    with psycopg.connect(postgres.url(APP_ROLE, DATABASE), autocommit=True) as session:
        session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE usename = current_user AND datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_flushed_redis_is_filled_again_without_a_change(committed, personas, redis_server, own_redis):
    with Redis.from_url(own_redis.url) as client:
        publisher = Publisher(database_url="", redis=client)
        assert publisher.publish()
        assert not publisher.publish()
        client.flushall()
        assert publisher.publish()
        assert snapshot(client).number == 1
        client.set(contract.REDIS_KEY, b"not a snapshot")
        assert publisher.publish()
        assert snapshot(client).number == 1


def test_a_delta_that_redis_did_not_take_is_told_again(committed, personas, own_redis, monkeypatch):
    with Redis.from_url(own_redis.url) as client:
        publisher = Publisher(database_url="", redis=client)
        listener = Listener(client)
        with monkeypatch.context() as patch:
            patch.setattr(client, "publish", lambda *_args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                publisher.publish()
        assert publisher.publish()
        assert listener.next_delta().number == 1
        listener.close()
