import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import redis
from control_double import SECRET, ControlDouble
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio.client import PubSub

from dataplane import atomic_file
from dataplane.catalog.follower import Follower, load_last_good, supersedes
from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Arm, Catalog, DeploymentEntry, EngineSettings, Limits, TenantEntry
from stack.redis import Redis

pytestmark = pytest.mark.anyio
NOWHERE = "redis://127.0.0.1:9/0"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def broker(redis_server: Redis) -> redis.Redis:
    client = redis.Redis.from_url(redis_server.url)
    client.delete(contract.REDIS_KEY)
    yield client
    client.delete(contract.REDIS_KEY)
    client.close()


def snapshot(number: int, *names: str, published_at_ms: int | None = None) -> Catalog:
    tenants = {name: TenantEntry(id=name, name=name, active=True, limits=Limits()) for name in names}
    published_at_ms = number if published_at_ms is None else published_at_ms
    return Catalog(
        number=number, published_at_ms=published_at_ms, tenants=tenants, keys={}, deployments={}, versions={}
    )


class Watch:
    """A running follower and the catalogs it reported."""

    def __init__(self, redis_url: str, control_url: str, path: Path, poll_s: float) -> None:
        self.seen: asyncio.Queue[Catalog] = asyncio.Queue()
        self.follower = Follower(
            redis_url=redis_url,
            control_url=control_url,
            internal_secret=SECRET,
            last_good=path,
            on_change=self.seen.put_nowait,
            poll_s=poll_s,
        )

    async def next(self) -> Catalog:
        async with asyncio.timeout(10):
            return await self.seen.get()


@asynccontextmanager
async def following(
    path: Path, redis_url: str = NOWHERE, control_url: str = "http://127.0.0.1:9", poll_s: float = 0.05
) -> AsyncIterator[Watch]:
    watch = Watch(redis_url, control_url, path, poll_s)
    task = asyncio.create_task(watch.follower.run())
    yield watch
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def until_listening(broker: redis.Redis, count: int = 1) -> None:
    async with asyncio.timeout(10):
        while dict(broker.pubsub_numsub(contract.REDIS_CHANNEL))[contract.REDIS_CHANNEL.encode()] != count:
            await asyncio.sleep(0.01)


numbers = st.integers(0, 5)


@given(numbers, numbers, numbers, numbers)
def test_of_two_snapshots_at_most_one_supersedes_the_other(n1: int, t1: int, n2: int, t2: int) -> None:
    one, two = snapshot(n1, published_at_ms=t1), snapshot(n2, published_at_ms=t2)
    if n1 == n2:
        assert not supersedes(one, two)
        assert not supersedes(two, one)
    elif n1 > n2:
        assert supersedes(one, two)
        assert supersedes(two, one) == (t2 > t1)


async def test_the_control_plane_alone_brings_every_newer_catalog(tmp_path: Path) -> None:
    with ControlDouble(snapshot(3, "acme")) as control:
        async with following(tmp_path / "c.json", control_url=control.url) as watch:
            assert await watch.next() == control.catalog
            control.catalog = snapshot(4, "acme", "evil")
            assert await watch.next() == control.catalog
            assert watch.follower.age_s is not None


async def test_a_control_plane_restored_from_a_backup_is_believed(tmp_path: Path) -> None:
    with ControlDouble(snapshot(7, "acme")) as control:
        async with following(tmp_path / "c.json", control_url=control.url) as watch:
            await watch.next()
            control.catalog = snapshot(2, "restored", published_at_ms=100)
            assert await watch.next() == control.catalog


async def test_arms_that_are_not_a_whole_are_kept_out_of_force_and_keep_no_revocation_back(tmp_path: Path) -> None:
    def published(number: int, weight: int, *tenants: str) -> Catalog:
        entry = DeploymentEntry("d", "acme", "d", True, (Arm("v", weight),), {}, EngineSettings())
        return msgspec.structs.replace(snapshot(number, *tenants), deployments={"d": entry})

    path = tmp_path / "c.json"
    with ControlDouble(published(1, 100, "acme", "evil")) as control:
        async with following(path, control_url=control.url) as watch:
            good = await watch.next()
            control.catalog = published(2, 99, "acme")
            taken = await watch.next()
            assert (taken.number, taken.tenants.keys()) == (2, {"acme"})
            assert taken.deployments == good.deployments
            assert watch.follower.refusals == 1
            control.catalog = published(3, 100, "acme")
            assert await watch.next() == control.catalog
            assert watch.follower.refusals == 1
    path.write_bytes(contract.encode(published(4, 99, "acme")))
    assert load_last_good(path).deployments == {}


async def test_redis_alone_brings_the_snapshot_and_then_deltas(
    tmp_path: Path, redis_server: Redis, broker: redis.Redis
) -> None:
    old, new = snapshot(1, "acme"), snapshot(2, "acme", "evil")
    broker.set(contract.REDIS_KEY, contract.encode(old))
    async with following(tmp_path / "c.json", redis_url=redis_server.url) as watch:
        assert await watch.next() == old
        broker.publish(contract.REDIS_CHANNEL, contract.encode(contract.diff(old, new)))
        assert await watch.next() == new


async def test_a_gap_between_deltas_is_filled_from_the_snapshot(
    tmp_path: Path, redis_server: Redis, broker: redis.Redis
) -> None:
    one, three, four = snapshot(1, "a"), snapshot(3, "a", "b", "c"), snapshot(4, "b", "c")
    broker.set(contract.REDIS_KEY, contract.encode(one))
    async with following(tmp_path / "c.json", redis_url=redis_server.url) as watch:
        await watch.next()
        broker.set(contract.REDIS_KEY, contract.encode(four))
        broker.publish(contract.REDIS_CHANNEL, contract.encode(contract.diff(three, four)))
        assert await watch.next() == four


async def test_a_gap_that_a_flushed_redis_cannot_fill_is_filled_by_the_control_plane_at_once(
    tmp_path: Path, redis_server: Redis, broker: redis.Redis
) -> None:
    with ControlDouble(snapshot(1, "a")) as control:
        async with following(tmp_path / "c.json", redis_server.url, control.url, poll_s=3600) as watch:
            await watch.next()
            await until_listening(broker)
            control.catalog = snapshot(9, "a", "z")
            broker.publish(contract.REDIS_CHANNEL, contract.encode(contract.diff(snapshot(8), control.catalog)))
            assert await watch.next() == control.catalog


async def test_rubbish_on_the_channel_changes_nothing_and_the_next_delta_still_counts(
    tmp_path: Path, redis_server: Redis, broker: redis.Redis
) -> None:
    old, new = snapshot(1, "a"), snapshot(2, "b")
    broker.set(contract.REDIS_KEY, contract.encode(old))
    async with following(tmp_path / "c.json", redis_url=redis_server.url) as watch:
        await watch.next()
        broker.publish(contract.REDIS_CHANNEL, b"\xff not json")
        broker.publish(contract.REDIS_CHANNEL, contract.encode(contract.diff(old, new)))
        assert await watch.next() == new


async def test_redis_is_followed_again_after_its_restart(tmp_path: Path, short_dir: Path) -> None:
    from ports import free_port

    server = Redis(free_port(), short_dir / "redis.log")
    server.start()
    try:
        async with following(tmp_path / "c.json", redis_url=server.url) as watch:
            with redis.Redis.from_url(server.url) as client:
                await until_listening(client)
            server.kill()
            server.start()
            with redis.Redis.from_url(server.url) as client:
                await until_listening(client)
                client.set(contract.REDIS_KEY, contract.encode(snapshot(1, "back")))
                client.publish(
                    contract.REDIS_CHANNEL, contract.encode(contract.diff(contract.empty(), snapshot(1, "back")))
                )
            assert (await watch.next()).tenants.keys() == {"back"}
    finally:
        server.stop()


async def test_the_last_good_catalog_serves_a_start_without_any_path(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with ControlDouble(snapshot(5, "acme")) as control:
        async with following(path, control_url=control.url) as watch:
            await watch.next()
    async with following(path) as watch:
        assert watch.follower.catalog == control.catalog
        assert watch.follower.age_s is None


async def test_an_end_in_the_middle_of_a_write_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, go_on = threading.Event(), threading.Event()
    write = atomic_file.write

    def slow(path: Path, content: bytes) -> None:
        writing.set()
        assert go_on.wait(10)
        write(path, content)

    monkeypatch.setattr(atomic_file, "write", slow)
    with ControlDouble(snapshot(5, "acme")) as control:
        async with following(tmp_path / "c.json", control_url=control.url):
            assert await asyncio.to_thread(writing.wait, 10)
            threading.Timer(0.05, go_on.set).start()
        assert load_last_good(tmp_path / "c.json") == control.catalog


@pytest.mark.parametrize("content", [b"", b"{}", b'{"number": 1', b"\x00" * 100])
def test_a_damaged_last_good_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content)
    assert load_last_good(path) == contract.empty()


async def test_a_broken_control_plane_is_asked_again_until_it_answers(tmp_path: Path) -> None:
    with ControlDouble(snapshot(5, "acme")) as control:
        control.broken = True
        async with following(tmp_path / "c.json", control_url=control.url) as watch:
            assert watch.follower.catalog == contract.empty()
            control.broken = False
            assert await watch.next() == control.catalog


async def test_it_ends_though_the_redis_client_loses_its_cancellation(
    tmp_path: Path, broker: redis.Redis, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens, over = asyncio.Event(), asyncio.Event()

    async def losing(*_: object, **__: object) -> None:
        listens.set()
        if over.is_set():
            raise asyncio.CancelledError
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)

    monkeypatch.setattr(PubSub, "get_message", losing)
    watch = Watch(redis_server.url, "http://127.0.0.1:9", tmp_path / "c.json", poll_s=60)
    task = asyncio.create_task(watch.follower.run())
    await listens.wait()
    task.cancel()
    ended, _ = await asyncio.wait({task}, timeout=10)
    over.set()
    assert ended
