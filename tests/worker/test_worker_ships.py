"""From the replica's spool to the control plane: its own records, and what a killed neighbour left."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
from worker_process import TIMEOUT_S, WorkerProcess

from dataplane.contracts import headers, ids
from dataplane.contracts.usage import RecordKind, Source, UsageBatch, UsageReceipt, UsageRecord
from dataplane.spool import segment

SECRET = "internal-secret-of-this-test"


class Ledger:
    """Takes usage as the control plane does, idempotent per record; refuses the first post as an outage would."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int, int], UsageRecord] = {}
        self.posts = 0
        self.changed = threading.Condition()

    def take(self, raw: bytes) -> bytes | None:
        batch = msgspec.msgpack.decode(raw, type=UsageBatch)
        with self.changed:
            self.posts += 1
            if self.posts == 1:
                return None
            known = len(self.records)
            for record in batch.records:
                self.records[record.request_id, record.attempt, record.sequence] = record
            self.changed.notify_all()
            new = len(self.records) - known
            return msgspec.json.encode(UsageReceipt(accepted=new, duplicates=len(batch.records) - new))

    def wait_final(self, request_id: str) -> None:
        with self.changed:
            assert self.changed.wait_for(
                lambda: any(
                    record.request_id == request_id and record.kind is RecordKind.FINAL
                    for record in self.records.values()
                ),
                timeout=TIMEOUT_S,
            )


@contextmanager
def served(ledger: Ledger) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            allowed = self.headers["authorization"] == f"Bearer {SECRET}" and self.path == "/internal/usage"
            receipt = ledger.take(raw) if allowed else None
            self.send_response(503 if receipt is None else 200)
            self.send_header("content-length", str(len(receipt or b"")))
            self.end_headers()
            self.wfile.write(receipt or b"")

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def orphan(spool_dir: Path, request_id: str) -> None:
    """A spool as a killed writer leaves it: no lock held, a torn last frame."""
    record = UsageRecord(
        request_id=request_id, attempt=1, source=Source.REPLICA, sequence=0, kind=RecordKind.FINAL, at_ms=1,
        tenant_id="ten_a", deployment_id="dep_a", version_id="ver_a",
    )  # fmt: skip
    folder = spool_dir / f"rep_dead.{'0' * 16}"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / f"00000000{segment.SUFFIX}").write_bytes(segment.encode(record) + segment.encode(record)[:20])


def test_a_worker_ships_its_own_records_and_those_of_a_killed_one_and_leaves_nothing(
    short_dir: Path, tiny_model: Path
) -> None:
    ledger = Ledger()
    left, own = ids.new_id(ids.Kind.REQUEST), ids.new_id(ids.Kind.REQUEST)
    orphan(short_dir / "spool", left)
    with served(ledger) as url:
        worker = WorkerProcess(short_dir, tiny_model, ["--control-url", url], {"PAGODA_INTERNAL_SECRET": SECRET})
        with worker, worker.trusted_client() as client:
            body = {"model": "tiny", "prompt": "Hello", "max_tokens": 2, "ignore_eos": True}
            fields = {headers.REQUEST_ID: own, headers.TENANT: "ten_a"}
            assert client.post("/v1/completions", json=body, headers=fields).status_code == 200
            for request_id in (left, own):
                ledger.wait_final(request_id)
    assert sorted(record.kind for record in ledger.records.values() if record.request_id == own) == ["admit", "final"]
    assert list((short_dir / "spool").iterdir()) == []
