"""Brings versions to this node in the background, one at a time, and remembers how that went."""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import structlog

from dataplane.contracts.catalog import VersionEntry
from dataplane.fleet.backoff import History, after_failure
from dataplane.fleet.plan import VersionView
from dataplane.fleet.versions import VersionError, Versions

_log = structlog.get_logger(__name__)


class _Kept(NamedTuple):
    """What stays on this node: versions by digest, and blobs."""

    digests: set[str]
    blobs: set[str]


class Preparation:
    """What the planner knows of versions (``views``), and the one worker that changes it.

    Args:
        versions: makes their folders.
        on_change: called when a view changed.
    """

    def __init__(self, versions: Versions, on_change: Callable[[], None]) -> None:
        self.views: dict[str, VersionView] = {}
        self._versions = versions
        self._worked_at_s: dict[str, float] = {}
        self._on_change = on_change
        self._failures: dict[str, History] = {}
        self._jobs: asyncio.Queue[VersionEntry | _Kept] = asyncio.Queue()

    def folder(self, digest: str) -> Path:
        """Return where the files of a prepared version are."""
        return self._versions.folder(digest)

    def is_here(self, digest: str) -> bool:
        """Say whether a version's files were made on this node at some time."""
        return self._versions.is_here(digest)

    def worked_since(self, version_id: str, since_s: float) -> bool:
        """Say whether bytes of a version were fetched or hashed since then (monotonic seconds)."""
        return self._worked_at_s.get(version_id, float("-inf")) >= since_s

    def prepare(self, version: VersionEntry) -> None:
        """Have ``version`` verified and its folder made; ``views`` tells when."""
        self.views[version.id] = VersionView(ready=False)
        self._jobs.put_nowait(version)

    def doubt(self, version_id: str) -> None:
        """Have a version looked at again before its next use: loading it failed."""
        view = self.views.get(version_id)
        if view is not None and view.ready:
            del self.views[version_id]

    def retry(self, version_id: str) -> None:
        """Have a version that could not be prepared tried again without a wait."""
        view = self.views.get(version_id)
        if view is not None and view.cause:
            del self.views[version_id]

    def keep(self, versions: Mapping[str, VersionEntry], digests_in_use: Iterable[str]) -> None:
        """Forget all versions but these and those in use, and remove what is kept of them on disk."""
        self.views = {version_id: view for version_id, view in self.views.items() if version_id in versions}
        self._failures = {
            version_id: history for version_id, history in self._failures.items() if version_id in versions
        }
        self._worked_at_s = {
            version_id: at_s for version_id, at_s in self._worked_at_s.items() if version_id in versions
        }
        digests = {version.digest for version in versions.values()} | set(digests_in_use)
        self._jobs.put_nowait(_Kept(digests, {file.sha256 for version in versions.values() for file in version.files}))

    async def run(self) -> None:
        """Work until cancelled; a fetch that is under way ends then."""
        try:
            while True:
                job = await self._jobs.get()
                if isinstance(job, _Kept):
                    await self._forget_others(job)
                else:
                    await self._materialise(job)
        finally:
            self._versions.stop()

    async def _forget_others(self, kept: "_Kept") -> None:
        try:
            await asyncio.to_thread(self._versions.forget_others, kept.digests, kept.blobs)
        except OSError as error:
            _log.error("version.not_forgotten", error=str(error))

    async def _materialise(self, version: VersionEntry) -> None:
        begun_s = time.monotonic()
        work = self._versions.fetched + self._versions.hashed
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
                behind = repr(error.__cause__) if error.__cause__ else ""
                _log.error("version.not_prepared", version_id=version.id, cause=str(error), behind=behind)
            self._failures[version.id] = history
            view = VersionView(ready=False, cause=str(error), retry_at_s=history.retry_at_s)
        else:
            self._failures.pop(version.id, None)
            _log.info("version.prepared", version_id=version.id, seconds=round(time.monotonic() - begun_s, 3))
            view = VersionView(ready=True)
        if self._versions.fetched + self._versions.hashed > work:
            self._worked_at_s[version.id] = time.monotonic()
        if version.id in self.views:  # else it has left the catalog meanwhile
            self.views[version.id] = view
        self._on_change()
