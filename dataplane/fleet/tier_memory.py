"""What the fleet remembers across its own restarts: when each deployment was last used, and what its starts took."""

import asyncio
import math
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import structlog

from dataplane import atomic_file
from dataplane.contracts.replica import Tier, TierCost

_KEPT_STARTS = 50
_SAVE_EVERY_S = 5.0
_log = structlog.get_logger(__name__)


class _Saved(msgspec.Struct):
    """The file's content, by deployment. Wall-clock times: a monotonic clock ends with the machine's run."""

    used_at_ms: dict[str, int] = {}
    starts_ms: dict[str, dict[Tier, list[int]]] = {}


class TierMemory:
    """In memory at once; in its file a few seconds later, and at the end of :meth:`run`.

    Args:
        path: the file. One that cannot be read only costs the memory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        saved = self._load()
        self._starts_ms = saved.starts_ms
        now_s, now_ms = time.monotonic(), _now_ms()
        self._used_at_s = {
            deployment_id: now_s - max(0, now_ms - at_ms) / 1000 for deployment_id, at_ms in saved.used_at_ms.items()
        }
        self._costs: dict[str, tuple[TierCost, ...]] | None = None
        self._dirty = False

    def _load(self) -> _Saved:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Saved)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError) as error:
            _log.error("fleet.tier_memory_unreadable", path=str(self._path), error=str(error))
        return _Saved()

    def used(self, deployment_id: str, now_s: float) -> None:
        """Note that a deployment is in use at ``now_s`` of the monotonic clock."""
        self._used_at_s[deployment_id] = now_s
        self._dirty = True

    def last_use_s(self, deployment_id: str) -> float | None:
        """Return when it was last used, on this life's monotonic clock; None: never, as far as is known."""
        return self._used_at_s.get(deployment_id)

    def started(self, deployment_id: str, tier: Tier, took_ms: int) -> None:
        """Note a start: how long it took from the need to READY, and from where it began."""
        starts = self._starts_ms.setdefault(deployment_id, {}).setdefault(tier, [])
        starts.append(took_ms)
        del starts[:-_KEPT_STARTS]
        self._costs, self._dirty = None, True

    @property
    def costs(self) -> Mapping[str, tuple[TierCost, ...]]:
        """What starts took, by deployment, warmest tier first."""
        if self._costs is None:
            self._costs = {
                deployment_id: tuple(_cost(tier, starts[tier]) for tier in Tier if starts.get(tier))
                for deployment_id, starts in self._starts_ms.items()
            }
        return self._costs

    def eta_ms(self, deployment_id: str, tier: Tier) -> int | None:
        """Return what a start from ``tier`` takes: half of them took no longer.

        Of a tier that was never started from, the next colder one is the best bound there is.
        """
        order = list(Tier)
        for cost in self.costs.get(deployment_id, ()):
            if order.index(cost.tier) >= order.index(tier):
                return cost.p50_ms
        return None

    def keep(self, deployment_ids: Collection[str]) -> None:
        """Forget all deployments but these."""
        known = {*self._used_at_s, *self._starts_ms}
        for deployment_id in known.difference(deployment_ids):
            self._used_at_s.pop(deployment_id, None)
            self._starts_ms.pop(deployment_id, None)
            self._costs, self._dirty = None, True

    async def run(self, until: asyncio.Event) -> None:
        """Save what changed every few seconds until told, and a last time then."""
        while not until.is_set():
            try:
                async with asyncio.timeout(_SAVE_EVERY_S):
                    await until.wait()
            except TimeoutError:
                await self._save()
        await self._save()

    async def _save(self) -> None:
        if self._dirty:
            self._dirty = False
            await asyncio.to_thread(self._write, self._snapshot())

    def _snapshot(self) -> bytes:
        now_s, now_ms = time.monotonic(), _now_ms()
        used_at_ms = {
            deployment_id: now_ms - round((now_s - at_s) * 1000) for deployment_id, at_s in self._used_at_s.items()
        }
        return msgspec.json.encode(_Saved(used_at_ms, self._starts_ms))

    def _write(self, content: bytes) -> None:
        try:
            atomic_file.write(self._path, content)
        except OSError as error:
            _log.error("fleet.tier_memory_unwritable", path=str(self._path), error=str(error))
            self._dirty = True


def _cost(tier: Tier, starts_ms: list[int]) -> TierCost:
    """Summarise by nearest rank: each figure is one that was measured."""
    ordered = sorted(starts_ms)

    def rank(share: float) -> int:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return TierCost(tier, p50_ms=rank(0.5), p95_ms=rank(0.95), samples=len(ordered))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
