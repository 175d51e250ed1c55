"""Brings versions to this node in the background, one at a time, and remembers how that went."""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from dataplane.contracts.catalog import VersionEntry
from dataplane.fleet.backoff import History, after_failure
from dataplane.fleet.placement import VersionView
from dataplane.fleet.versions import VersionError, Versions

_log = structlog.get_logger(__name__)


class Preparation:
    """What the planner knows of versions (``views``), and the one worker that changes it.

    Args:
        home: the state folder.
        on_change: called when a view changed.
    """

    def __init__(self, home: Path, on_change: Callable[[], None]) -> None:
        self.views: dict[str, VersionView] = {}
        self._versions = Versions(home)
        self._on_change = on_change
        self._failures: dict[str, History] = {}
        self._jobs: asyncio.Queue[VersionEntry | set[str]] = asyncio.Queue()

    def folder(self, digest: str) -> Path:
        """Return where the files of a prepared version are."""
        return self._versions.folder(digest)

    def prepare(self, version: VersionEntry) -> None:
        """Have ``version`` verified and its folder made; ``views`` tells when."""
        self.views[version.id] = VersionView(ready=False)
        self._jobs.put_nowait(version)

    def doubt(self, version_id: str) -> None:
        """Have a version looked at again before its next use: loading it failed."""
        view = self.views.get(version_id)
        if view is not None and view.ready:
            del self.views[version_id]

    def keep(self, versions: Mapping[str, VersionEntry], digests_in_use: Iterable[str]) -> None:
        """Forget all versions but these and those in use, and remove their folders."""
        self.views = {version_id: view for version_id, view in self.views.items() if version_id in versions}
        self._failures = {
            version_id: history for version_id, history in self._failures.items() if version_id in versions
        }
        self._jobs.put_nowait({version.digest for version in versions.values()} | set(digests_in_use))

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            job = await self._jobs.get()
            if isinstance(job, set):
                await asyncio.to_thread(self._versions.forget_others, job)
            else:
                await self._materialise(job)

    async def _materialise(self, version: VersionEntry) -> None:
        begun_s = time.monotonic()
        try:
            await asyncio.to_thread(self._versions.materialise, version)
        except VersionError as error:
            history = after_failure(
                self._failures.get(version.id),
                cause=str(error),
                healthy_s=0.0,
                now_s=time.monotonic(),
                draw=random.random(),  # noqa: S311 - jitter
            )
            if version.id not in self._failures:
                _log.error("version.not_prepared", version_id=version.id, cause=str(error))
            self._failures[version.id] = history
            view = VersionView(ready=False, cause=str(error), retry_at_s=history.retry_at_s)
        else:
            self._failures.pop(version.id, None)
            _log.info("version.prepared", version_id=version.id, seconds=round(time.monotonic() - begun_s, 3))
            view = VersionView(ready=True)
        if version.id in self.views:  # else it has left the catalog meanwhile
            self.views[version.id] = view
        self._on_change()
