"""Versions on their way through validation, and a fleet that tries them: an HTTP server with answers by script."""

import hashlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

from controlplane.jobs import run
from controlplane.jobs.lease import JobState
from controlplane.jobs.models import Job
from controlplane.registry import stores, validation
from controlplane.registry.models import Model, ModelVersion, UploadFile, UploadPart, VersionState
from controlplane.registry.stores.local import LocalStore
from dataplane.contracts.replica import TrialReport, TrialRequest, TrialState
from tenants.actor import acting_as, system_actor
from tenants.models import Tenant

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
        validation.order(version)
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
        with store.receiving(f"{version.id}/{name}", part) as incoming:
            incoming.write(body)
            incoming.keep()


def job_of(version: ModelVersion) -> Job:
    with acting_as(PLATFORM):
        return Job.objects.get(kind=validation.KIND, key=version.id)


def validate(version: ModelVersion) -> JobState | None:
    """Have a worker take up the version's job."""
    return run.run_job(job_of(version).id)


def stored(version: ModelVersion) -> ModelVersion:
    with acting_as(PLATFORM):
        related = ("files__artifact", "checks", "upload_files")
        return ModelVersion.objects.prefetch_related(*related).select_related("model").get(pk=version.pk)


def lines(version: ModelVersion) -> dict[str, str]:
    """Return the states of the checklist by line."""
    return {check.name: check.state for check in stored(version).checks.all()}


class FleetDouble:
    """Answers trials: each version's next answer is the next of ``script``, the last one again and again."""

    def __init__(self, url: str, secret: str) -> None:
        self.url, self.secret = url, secret
        self.asked: list[TrialRequest] = []
        self.script: list[TrialReport | bytes | int] = [
            TrialReport(version_id="", state=TrialState.RUNNING, cause="loading"),
            TrialReport(version_id="", state=TrialState.PASSED, first_token_ms=12),
        ]
        self._answers: dict[str, Iterator[TrialReport | bytes | int]] = {}

    def post(self, body: bytes) -> tuple[int, bytes]:
        request = msgspec.json.decode(body, type=TrialRequest)
        self.asked.append(request)
        self._answers.setdefault(request.version.id, _then_the_last(self.script))
        return 202, b""

    def get(self, path: str) -> tuple[int, bytes]:
        answer = next(self._answers[path.partition("?")[0].rpartition("/")[2]])
        if isinstance(answer, int):
            return answer, b"no"
        return 200, answer if isinstance(answer, bytes) else msgspec.json.encode(answer)


def _then_the_last(script: Iterable[TrialReport | bytes | int]) -> Iterator[TrialReport | bytes | int]:
    answer: TrialReport | bytes | int = 500
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
            self.answer(*self.guarded(lambda: fleet.post(body)))

        def do_GET(self) -> None:
            self.answer(*self.guarded(lambda: fleet.get(self.path)))

        def guarded(self, act) -> tuple[int, bytes]:
            return act() if self.headers["Authorization"] == f"Bearer {secret}" else (401, b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fleet = FleetDouble(f"http://127.0.0.1:{server.server_port}", secret)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield fleet
        finally:
            server.shutdown()
            thread.join()
