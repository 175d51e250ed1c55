"""One attempt of a worker to validate a version: how its steps read, mark and commit."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db.models import F, Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from controlplane.jobs import services as jobs
from controlplane.jobs.services import Lease
from controlplane.registry.lifecycle import locked
from controlplane.registry.models import ModelVersion, StepState, VersionCheck, VersionState
from controlplane.registry.stores import Store
from controlplane.registry.validation.checklist import LINES, Standing
from dataplane.contracts.verdict import CheckState
from tenants.actor import acting_as
from tenants.errors import NotFound

_BEAT_S = 5.0
_MAX_TEXT_CHARS = 2_000
_PUT_OFF = "This cannot be checked just now, and is tried again by itself. If it stays so, tell the platform."
_OVER = (StepState.PASSED, StepState.FAILED, StepState.NOT_RUN)


class Overtaken(Exception):
    """The version was deleted meanwhile; there is nothing left to validate."""


class Refused(Exception):
    """The version cannot be served; ``standings`` say of each line that is known why, and what to do."""

    def __init__(self, *standings: Standing) -> None:
        super().__init__("; ".join(standing.reason for standing in standings if standing.reason))
        self.standings = standings


def refused(line: str, reason: str, mend: str) -> Refused:
    """Return the refusal that one line of the checklist is at fault for."""
    found = next(known for known in LINES if known.name == line)
    return Refused(Standing(found, True, CheckState.FAILED, reason, mend))


class Attempt:
    """What the steps share. Every transaction is fenced by the lease and holds the version's lock."""

    def __init__(self, lease: Lease, version_id: str, folder: Path, store: Store) -> None:
        self.lease, self.version_id, self.folder, self.store = lease, version_id, folder, store
        self._last_beat_s = time.monotonic()

    def read(self) -> ModelVersion:
        """Return the version with its files, checks and uploaded parts, as they are now."""
        related = ("files__artifact", "aliases", "checks", "upload_files__parts")
        with acting_as(self.lease.actor):
            rows = ModelVersion.objects.select_related("model", "tenant").prefetch_related(*related)
            version = rows.filter(pk=self.version_id, state=VersionState.VALIDATING).first()
        if version is None:
            raise Overtaken
        return version

    @contextmanager
    def commit(self) -> Iterator[ModelVersion]:
        """Open the transaction of a step's commit, with the version locked.

        Raises:
            LeaseLostError: another worker has the job.
            Overtaken: the version is not being validated any more.
        """
        with jobs.advancing(self.lease):
            yield self.lock()
        self._last_beat_s = time.monotonic()

    def lock(self) -> ModelVersion:
        """Lock the version in the open transaction. Raises as :meth:`commit` does."""
        try:
            version = locked(ModelVersion.objects.all(), self.version_id)
        except NotFound:
            raise Overtaken from None
        if version.state != VersionState.VALIDATING:
            raise Overtaken
        return version

    def beat(self) -> None:
        """Renew the lease where that is due; for work that takes long between two commits."""
        if time.monotonic() - self._last_beat_s > _BEAT_S:
            jobs.heartbeat(self.lease)
            self._last_beat_s = time.monotonic()

    def begin(self, line: str) -> None:
        """Show that a line is being worked on."""
        with self.commit():
            self.mark(line, StepState.RUNNING)

    def put_off(self) -> None:
        """Say on the lines that were being worked on that this goes on later: the fault is ours."""
        with self.commit():
            running = VersionCheck.objects.filter(version_id=self.version_id, state=StepState.RUNNING)
            running.update(reason=_PUT_OFF)

    def mark(self, line: str, state: StepState, reason: str = "", mend: str = "") -> None:
        """Write how a line stands, in the open transaction."""
        now = Value(timezone.now())
        VersionCheck.objects.filter(version_id=self.version_id, name=line).update(
            state=state, reason=_text(reason), mend=_text(mend),
            started_at=Coalesce(F("started_at"), now), ended_at=now if state in _OVER else None,
        )  # fmt: skip


def _text(written: str) -> str:
    """Text in which a stranger's may be quoted: PostgreSQL takes all of Unicode but NUL and lone surrogates."""
    return written.replace("\0", "\ufffd").encode("utf-8", "replace").decode()[:_MAX_TEXT_CHARS]
