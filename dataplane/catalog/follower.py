"""Follows the catalog by two independent paths, so that a revocation needs only one of them alive.

Redis brings deltas within milliseconds; the control plane is asked every few seconds. Either may be away for as long as
it likes: the newest catalog seen stays in force, in memory and in a file that survives restarts.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import structlog
from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dataplane import atomic_file
from dataplane.catalog.soundness import sound
from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Catalog, CatalogError
from dataplane.contracts.internal_calls import authorization

_RECONNECT_S = 0.5
_HTTP_TIMEOUT_S = 5.0
_REDIS_TIMEOUT_S = 3.0
_LISTEN_S = 1.0
_log = structlog.get_logger(__name__)


def supersedes(new: Catalog, old: Catalog) -> bool:
    """Say whether ``new`` is to replace ``old``.

    Numbers decide. A lower number counts only when it was published later, which happens when the control plane was
    restored from a backup; an answer that was overtaken on its way is older in both.
    """
    if new.number > old.number:
        return True
    return new.number < old.number and new.published_at_ms > old.published_at_ms


def load_last_good(path: Path) -> Catalog:
    """Return the catalog kept in ``path``; the empty one, with a warning, where it cannot be read."""
    try:
        return sound(contract.decode(path.read_bytes()), contract.empty()).catalog
    except FileNotFoundError:
        return contract.empty()
    except (OSError, CatalogError) as error:
        _log.warning("catalog.last_good_unreadable", path=str(path), error=str(error))
        return contract.empty()


def _heed_cancellation() -> None:
    """Raise a cancellation that was lost on its way here.

    The Redis client sends with ``asyncio.wait_for``, which in Python 3.11 drops a cancellation that comes in the moment
    its wait ends: the process would follow on, and never end.

    Raises:
        CancelledError: this task was cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class _PathState:
    """One of the two paths: logs when it is lost and when it is back, not each attempt between."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lost = False

    def lost(self, error: Exception | str) -> None:
        if not self._lost:
            _log.warning("catalog.path_lost", path=self._name, error=str(error) or type(error).__name__)
        self._lost = True

    def alive(self) -> None:
        if self._lost:
            _log.info("catalog.path_back", path=self._name)
        self._lost = False


class Follower:
    """The newest catalog this process has seen, made sound (:mod:`.soundness`).

    ``refusals`` counts the times that a deployment's arms were kept out of force.

    Args:
        redis_url: where the publisher writes the snapshot and its deltas.
        control_url: base URL of the control plane.
        internal_secret: bearer of internal calls.
        last_good: file that keeps the newest catalog across restarts; its folder is made where missing.
        on_change: called on the event loop with each newer catalog, in order.
        poll_s: seconds between two questions to the control plane.
    """

    def __init__(
        self,
        *,
        redis_url: str,
        control_url: str,
        internal_secret: str,
        last_good: Path,
        on_change: Callable[[Catalog], None],
        poll_s: float = 2.0,
    ) -> None:
        self._redis_url = redis_url
        self._control_url = control_url
        self._internal_secret = internal_secret
        self._last_good = last_good
        self._on_change = on_change
        self._poll_s = poll_s
        self._catalog = load_last_good(last_good)
        self.refusals = 0
        self._heard_at_s: float | None = None
        self._poll_now = asyncio.Event()
        self._unsaved = asyncio.Event()
        self._saving = threading.Lock()

    @property
    def catalog(self) -> Catalog:
        """The newest catalog; snapshot 0 when none was ever seen."""
        return self._catalog

    @property
    def age_s(self) -> float | None:
        """Seconds since a path last answered; None when neither has since the start."""
        return None if self._heard_at_s is None else time.monotonic() - self._heard_at_s

    async def run(self) -> None:
        """Follow until cancelled. Never raises for a path that is away."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_redis())
                tasks.create_task(self._follow_control())
                tasks.create_task(self._keep_last_good())
        finally:
            if self._unsaved.is_set():
                self._save()

    def _take(self, new: Catalog) -> None:
        self._heard_at_s = time.monotonic()
        if not supersedes(new, self._catalog):
            return
        if new.number < self._catalog.number:
            _log.warning("catalog.went_back", old=self._catalog.number, new=new.number)
        checked = sound(new, self._catalog)
        self.refusals += len(checked.faults)
        for deployment_id, fault in checked.faults.items():
            _log.error("catalog.arms_refused", number=new.number, deployment_id=deployment_id, fault=fault)
        taken = self._catalog = checked.catalog
        self._unsaved.set()
        _log.info("catalog.taken", number=taken.number, deployments=len(taken.deployments), keys=len(taken.keys))
        self._on_change(taken)

    # --- Redis

    async def _follow_redis(self) -> None:
        path = _PathState("redis")
        while True:
            try:
                await self._listen(path)
            except (RedisError, OSError) as error:
                path.lost(error)
            await asyncio.sleep(_RECONNECT_S)

    async def _listen(self, path: _PathState) -> None:
        client = Redis.from_url(
            self._redis_url,
            socket_connect_timeout=_REDIS_TIMEOUT_S,
            socket_timeout=_REDIS_TIMEOUT_S,
            health_check_interval=_LISTEN_S,
            retry=Retry(NoBackoff(), 0),
        )
        async with client, client.pubsub(ignore_subscribe_messages=True) as channel:
            # Subscribe before reading: a delta published between the two is then heard, never missed.
            await channel.subscribe(contract.REDIS_CHANNEL)
            await self._read_snapshot(client)
            path.alive()
            while True:
                message = await channel.get_message(timeout=_LISTEN_S)
                _heed_cancellation()
                if message is not None and not self._take_delta(message["data"]):
                    await self._read_snapshot(client)

    async def _read_snapshot(self, client: Redis) -> None:
        raw = await client.get(contract.REDIS_KEY)
        if raw is None:
            self._poll_now.set()
            return
        try:
            self._take(contract.decode(raw if isinstance(raw, bytes) else raw.encode()))
        except CatalogError as error:
            _log.error("catalog.snapshot_refused", path="redis", error=str(error))
            self._poll_now.set()

    def _take_delta(self, raw: bytes) -> bool:
        """Apply a delta; False when a whole snapshot is needed instead."""
        try:
            delta = contract.decode_delta(raw)
            if delta.number == self._catalog.number:
                self._heard_at_s = time.monotonic()
                return True
            self._take(contract.apply(self._catalog, delta))
        except CatalogError as error:
            _log.info("catalog.delta_not_applied", error=str(error))
            self._poll_now.set()
            return False
        return True

    # --- the control plane

    async def _follow_control(self) -> None:
        path = _PathState("control")
        headers = {"authorization": authorization(self._internal_secret)}
        async with httpx.AsyncClient(
            base_url=self._control_url, headers=headers, timeout=_HTTP_TIMEOUT_S, trust_env=False
        ) as client:
            while True:
                self._poll_now.clear()
                try:
                    await self._poll(client)
                    path.alive()
                except (httpx.HTTPError, CatalogError) as error:
                    path.lost(error)
                    # A gap that Redis showed must not turn into a busy loop while the control plane is away.
                    await asyncio.sleep(min(_RECONNECT_S, self._poll_s))
                try:
                    async with asyncio.timeout(self._poll_s):
                        await self._poll_now.wait()
                except TimeoutError:
                    pass

    async def _poll(self, client: httpx.AsyncClient) -> None:
        answer = await client.get("/internal/catalog", params={"after": self._catalog.number})
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            self._heard_at_s = time.monotonic()
            return
        answer.raise_for_status()
        self._take(contract.decode(answer.content))

    # --- the last good file

    async def _keep_last_good(self) -> None:
        while True:
            await self._unsaved.wait()
            catalog = self._catalog
            if not await asyncio.to_thread(self._save):
                await asyncio.sleep(self._poll_s)
            elif catalog is self._catalog:
                self._unsaved.clear()

    def _save(self) -> bool:
        # Race: run() is cancelled while a thread writes. Its last save waits for that one, so the newest is what stays.
        with self._saving:
            try:
                atomic_file.write(self._last_good, contract.encode(self._catalog))
            except OSError as error:
                _log.error("catalog.last_good_unwritable", path=str(self._last_good), error=str(error))
                return False
        return True
