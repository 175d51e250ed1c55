import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from dataplane.contracts.usage import RecordKind, Source, UsageBatch, UsageReceipt, UsageRecord
from dataplane.spool import folder, segment
from dataplane.spool.shipper import ShipError, Shipper
from dataplane.spool.writer import SpoolFull, SpoolWriter

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def record(number: int, kind: RecordKind = RecordKind.FINAL) -> UsageRecord:
    return UsageRecord(
        request_id=f"req_{number:06d}",
        attempt=1,
        source=Source.REPLICA,
        sequence=0,
        kind=kind,
        at_ms=0,
        tenant_id="ten",
        deployment_id="dep",
        version_id="ver",
    )


def on_disk(root: Path) -> list[UsageRecord]:
    found = []
    for path in sorted(root.glob(f"*/*{segment.SUFFIX}")):
        found += segment.read(path, 0, 10**6).records
    return found


class Control:
    """A control plane that remembers what it acknowledged, and may be away or refuse."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.away = False
        self.poison: str | None = None
        self.posts = 0

    def shipper(self, root: Path) -> Shipper:
        return Shipper(root, "http://control", "secret", transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer secret"
        assert request.url.path == "/internal/usage"
        self.posts += 1
        if self.away:
            return httpx.Response(503)
        batch = msgspec.msgpack.decode(request.content, type=UsageBatch)
        if any(item.request_id == self.poison for item in batch.records):
            return httpx.Response(422)
        new = {item.request_id for item in batch.records} - self.seen.keys()
        for item in batch.records:
            self.seen[item.request_id] = self.seen.get(item.request_id, 0) + 1
        receipt = UsageReceipt(accepted=len(new), duplicates=len(batch.records) - len(new))
        return httpx.Response(200, content=msgspec.json.encode(receipt))


@pytest.fixture
def control() -> Control:
    return Control()


async def test_append_returns_only_when_the_record_is_on_the_disk(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "rep_a", MIB)
    for number in range(5):
        await writer.append(record(number))
        assert on_disk(tmp_path) == [record(index) for index in range(number + 1)]
    await writer.close()


async def test_many_appends_at_once_share_flushes_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes = 0
    flush = os.fdatasync

    def counted(fd: int) -> None:
        nonlocal flushes
        flushes += 1
        flush(fd)

    monkeypatch.setattr(segment.os, "fdatasync", counted)
    writer = SpoolWriter(tmp_path, "rep_a", MIB)
    await asyncio.gather(*(writer.append(record(number)) for number in range(200)))
    await writer.close()
    assert on_disk(tmp_path) == [record(number) for number in range(200)]
    assert flushes < 100


async def test_close_flushes_what_was_only_queued(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "rep_a", MIB)
    for number in range(50):
        writer.append_nowait(record(number))
    await writer.close()
    assert len(on_disk(tmp_path)) == 50
    with pytest.raises(RuntimeError):
        writer.append_nowait(record(51))


async def test_a_full_spool_stops_admission_but_takes_the_records_of_what_was_admitted(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "rep_a", 2000)
    admitted = 0
    while not writer.full:
        await writer.append(record(admitted, RecordKind.ADMIT))
        admitted += 1
    with pytest.raises(SpoolFull):
        await writer.append(record(admitted, RecordKind.ADMIT))
    writer.append_nowait(record(9999))
    await writer.close()
    assert len(on_disk(tmp_path)) == admitted + 1


async def test_the_limit_counts_the_orphans_of_crashed_writers(tmp_path: Path) -> None:
    orphan = tmp_path / f"rep_old.{'0' * 16}"
    orphan.mkdir()
    (orphan / "lock").touch()
    (orphan / f"00000000{segment.SUFFIX}").write_bytes(b"x" * 3000)
    writer = SpoolWriter(tmp_path, "rep_a", 2000)
    with pytest.raises(SpoolFull):
        await writer.append(record(0))
    await writer.close()


async def test_a_disk_that_refuses_writes_stops_admission_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.spool.writer._RETRY_S", 0.01)
    writer = SpoolWriter(tmp_path, "rep_a", MIB)
    with monkeypatch.context() as patched:
        patched.setattr(segment.os, "write", _no_space)
        writer.append_nowait(record(1))
        with pytest.raises(SpoolFull):
            await writer.append(record(2))
        assert writer.full
    writer.append_nowait(record(3))
    await writer.close()
    assert on_disk(tmp_path) == [record(1), record(3)]


def _no_space(fd: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


async def test_a_closing_writer_does_not_wait_for_a_disk_that_never_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(tmp_path, "rep_a", MIB)
    monkeypatch.setattr(segment.os, "write", _no_space)
    writer.append_nowait(record(1))
    await writer.close()
    assert on_disk(tmp_path) == []


async def test_the_living_segment_is_shipped_once_and_kept_while_its_writer_lives(
    tmp_path: Path, control: Control
) -> None:
    writer = SpoolWriter(tmp_path, "rep_a", MIB)
    shipper = control.shipper(tmp_path)
    await writer.append(record(1))
    assert await shipper.flush() == 1
    await writer.append(record(2))
    assert await shipper.flush() == 1
    assert await shipper.flush() == 0
    assert control.seen == {"req_000001": 1, "req_000002": 1}
    await writer.close()


async def test_a_closed_spool_is_shipped_and_leaves_nothing_behind(tmp_path: Path, control: Control) -> None:
    writer = SpoolWriter(tmp_path, "rep_a", MIB)
    await writer.append(record(1))
    await writer.close()
    assert await control.shipper(tmp_path).flush() == 1
    assert list(tmp_path.iterdir()) == []


async def test_finished_segments_go_only_after_the_receipt(tmp_path: Path, control: Control) -> None:
    writer = SpoolWriter(tmp_path, "rep_a", 8000)  # segments of 1,000 bytes
    for number in range(30):
        await writer.append(record(number))
    shipper = control.shipper(tmp_path)
    control.away = True
    with pytest.raises(ShipError):
        await shipper.flush()
    assert len(on_disk(tmp_path)) == 30
    control.away = False
    await shipper.flush()
    assert len(control.seen) == 30
    assert len(list(tmp_path.glob(f"*/*{segment.SUFFIX}"))) == 1
    await writer.close()


async def test_run_delivers_after_the_control_plane_comes_back(
    tmp_path: Path, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataplane.spool.shipper._BACKOFF_FIRST_S", 0.001)
    writer = SpoolWriter(tmp_path, "rep_a", MIB)
    control.away = True
    running = asyncio.create_task(control.shipper(tmp_path).run())
    await writer.append(record(1))
    while control.posts < 3:
        await asyncio.sleep(0)
    control.away = False
    while not control.seen:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await writer.close()
    assert set(control.seen) == {"req_000001"}


async def test_one_record_that_is_refused_for_good_does_not_hold_back_its_neighbours(
    tmp_path: Path, control: Control
) -> None:
    writer = SpoolWriter(tmp_path, "rep_a", MIB)
    await asyncio.gather(*(writer.append(record(number)) for number in range(9)))
    await writer.close()
    control.poison = "req_000004"
    await control.shipper(tmp_path).flush()
    assert len(control.seen) == 8
    kept = segment.read(tmp_path / f"rejected{segment.SUFFIX}", 0, 10)
    assert [item.request_id for item in kept.records] == ["req_000004"]


async def test_a_receipt_for_fewer_records_is_no_receipt(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "rep_a", MIB)
    await writer.append(record(1))
    await writer.close()
    short = httpx.MockTransport(lambda _: httpx.Response(200, content=b'{"accepted":0,"duplicates":0}'))
    with pytest.raises(ShipError):
        await Shipper(tmp_path, "http://control", "secret", transport=short).flush()
    assert on_disk(tmp_path) == [record(1)]


async def test_a_damaged_segment_is_kept_for_a_person_after_its_good_records_are_shipped(
    tmp_path: Path, control: Control
) -> None:
    orphan = tmp_path / f"rep_old.{'0' * 16}"
    orphan.mkdir()
    (orphan / "lock").touch()
    frames = bytearray(b"".join(segment.encode(record(number)) for number in range(3)))
    frames[len(frames) // 2] ^= 1
    (orphan / f"00000000{segment.SUFFIX}").write_bytes(frames)
    await control.shipper(tmp_path).flush()
    assert set(control.seen) == {"req_000000"}
    assert [path.read_bytes() for path in (tmp_path / folder.DAMAGED).iterdir()] == [bytes(frames)]


_CHILD = """
import asyncio, sys
from pathlib import Path
from dataplane.spool.writer import SpoolWriter
from dataplane.contracts.usage import RecordKind, Source, UsageRecord

async def main():
    writer = SpoolWriter(Path(sys.argv[1]), "rep_child", 1 << 20)
    number = 0
    while True:
        await writer.append(UsageRecord(request_id=f"req_{number:06d}", attempt=1, source=Source.REPLICA, sequence=0,
            kind=RecordKind.FINAL, at_ms=0, tenant_id="ten", deployment_id="dep", version_id="ver"))
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


async def test_a_live_writer_of_another_process_is_left_alone_and_adopted_once_it_is_killed(
    tmp_path: Path, control: Control
) -> None:
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(20):
        acknowledged = int(child.stdout.readline())
    assert await control.shipper(tmp_path).flush() == 0
    child.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *map(int, child.stdout.read().split())])
    child.wait()
    child.stdout.close()
    shippers = [control.shipper(tmp_path) for _ in range(3)]
    await asyncio.gather(*(shipper.flush() for shipper in shippers))
    assert {f"req_{number:06d}" for number in range(acknowledged + 1)} <= control.seen.keys()
    assert list(tmp_path.iterdir()) == []
