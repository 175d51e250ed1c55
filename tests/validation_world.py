"""Versions on their way through validation, and a fleet that tries them: an HTTP server with answers by script."""

import hashlib
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
from django.utils import timezone

from controlplane.jobs import run, services
from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job
from controlplane.jobs.queue import enqueue
from controlplane.registry import stores
from controlplane.registry.models import Artifact, Model, ModelVersion, UploadFile, UploadPart, VersionState
from controlplane.registry.stores.local import LocalStore
from controlplane.registry.validation.job import KIND, order_validation
from dataplane.contracts.replica import TrialReport, TrialRequest, TrialState
from tenants.actor import acting_as, system_actor
from tenants.models import AuditEvent, Tenant

PLATFORM = system_actor("tests")
PART_BYTES = 64 * 1024


def bring(tenant: Tenant, folder: Path, store: LocalStore, *, name: str = "tiny") -> ModelVersion:
    """Make a version of ``folder`` whose parts have all arrived, as a completed upload leaves it."""
    with acting_as(PLATFORM):
        model, _ = Model.objects.get_or_create(tenant=tenant, name=name)
        version = ModelVersion.objects.create(
            tenant=tenant, model=model, number=model.versions.count() + 1, state=VersionState.VALIDATING,
            source="upload", created_by="tests",
        )  # fmt: skip
        for path in sorted(folder.iterdir()):
            _bring_file(version, path.name, path.read_bytes(), store)
        order_validation(version)
    return version


def _bring_file(version: ModelVersion, name: str, content: bytes, store: LocalStore) -> None:
    upload = store.begin(f"{version.id}/{name}")
    file = UploadFile.objects.create(
        tenant_id=version.tenant_id, version=version, name=name, size_bytes=len(content), part_bytes=PART_BYTES,
        multipart_id=upload,
    )  # fmt: skip
    for number, begin in enumerate(range(0, len(content), PART_BYTES), 1):
        body = content[begin : begin + PART_BYTES]
        part = stores.Part(number, len(body), hashlib.sha256(body).hexdigest())
        UploadPart.objects.create(
            tenant_id=version.tenant_id, file=file, number=number, size_bytes=len(body), sha256=part.sha256
        )
        with closing(store.receive(f"{version.id}/{name}", part)) as incoming:
            incoming.write(body)
            incoming.keep()


def job_of(version: ModelVersion) -> Job:
    with acting_as(PLATFORM):
        return Job.objects.get(kind=KIND, key=version.id)


def validate(version: ModelVersion) -> JobState | None:
    """Have a worker take up the version's job."""
    return run.run_job(job_of(version).id)


def let_time_pass(version: ModelVersion) -> None:
    """Let the lease of a worker that went silent run out, and the pause before the next attempt end."""
    past = timezone.now() - timedelta(seconds=1)
    with acting_as(PLATFORM):
        Job.objects.filter(key=version.id, state=JobState.RUNNING).update(expires_at=past)
    services.sweep()
    with acting_as(PLATFORM):
        Job.objects.filter(key=version.id).update(run_at=past)


def grow_old() -> None:
    """Let the artifacts be too old to be spared by the collector."""
    with acting_as(PLATFORM):
        Artifact.objects.update(created_at=timezone.now() - timedelta(days=1))


def collect() -> None:
    """Have a worker end what nothing refers to."""
    with acting_as(PLATFORM):
        job = enqueue(kind="registry.collect", key=secrets.token_hex(4), payload={})
    assert run.run_job(job.id) is JobState.DONE


def stored(version: ModelVersion) -> ModelVersion:
    with acting_as(PLATFORM):
        related = ("files__artifact", "checks", "upload_files", "aliases")
        return ModelVersion.objects.prefetch_related(*related).select_related("model").get(pk=version.pk)


def lines(version: ModelVersion) -> dict[str, str]:
    """Return the states of the checklist by line."""
    return {check.name: check.state for check in stored(version).checks.all()}


def line(version: ModelVersion, name: str) -> tuple[str, str]:
    """Return the reason and the mend of a line."""
    (check,) = (check for check in stored(version).checks.all() if check.name == name)
    return check.reason, check.mend


def verbs(version: ModelVersion) -> list[str]:
    with acting_as(PLATFORM):
        return list(AuditEvent.objects.filter(target_id=version.id).order_by("sequence").values_list("verb", flat=True))


def blobs_in(store: LocalStore) -> set[str]:
    return {path.name for path in (store.root / "sha256").rglob("*") if path.is_file()}


def digests(folder: Path) -> set[str]:
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


Answer = TrialReport | bytes | int


class FleetDouble:
    """Answers trials: each version's next answer is the next of ``script``, the last one again and again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[TrialRequest] = []
        self.script: list[Answer] = [
            TrialReport(version_id="", state=TrialState.RUNNING, cause="loading"),
            TrialReport(version_id="", state=TrialState.PASSED, first_token_ms=12),
        ]
        self._answers: dict[str, Iterator[Answer]] = {}

    def post(self, body: bytes) -> tuple[int, bytes]:
        request = msgspec.json.decode(body, type=TrialRequest)
        self.asked.append(request)
        self._answers.setdefault(request.version.id, _then_the_last(self.script))
        return 202, b""

    def restart(self) -> None:
        """Forget every trial, as a fleet that was started again has."""
        self._answers.clear()

    def get(self, path: str) -> tuple[int, bytes]:
        answers = self._answers.get(path.partition("?")[0].rpartition("/")[2])
        if answers is None:
            return 404, b"this version was not tried lately"
        answer = next(answers)
        if isinstance(answer, int):
            return answer, b"no"
        return 200, answer if isinstance(answer, bytes) else msgspec.json.encode(answer)


def _then_the_last(script: Iterable[Answer]) -> Iterator[Answer]:
    answer: Answer = 500
    for answer in list(script):
        yield answer
    while True:
        yield answer


@contextmanager
def fleet_double(secret: str) -> Iterator[FleetDouble]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(*(fleet.post(body) if self.is_ours() else (401, b"")))

        def do_GET(self) -> None:
            self.answer(*(fleet.get(self.path) if self.is_ours() else (401, b"")))

        def is_ours(self) -> bool:
            return self.headers["Authorization"] == f"Bearer {secret}"

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fleet = FleetDouble(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield fleet
        finally:
            server.shutdown()
            thread.join()
