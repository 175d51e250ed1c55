import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.contracts.usage import Outcome, RecordKind, Source, UsageRecord
from dataplane.spool import segment
from dataplane.spool.segment import SegmentWriter, Tail

records = st.builds(
    UsageRecord,
    request_id=st.text(max_size=8),
    attempt=st.integers(0, 3),
    source=st.sampled_from(Source),
    sequence=st.integers(0, 9),
    kind=st.sampled_from(RecordKind),
    at_ms=st.integers(0, 2**41),
    tenant_id=st.text(max_size=4),
    deployment_id=st.just("dep"),
    version_id=st.just("ver"),
    completion_tokens=st.integers(0, 2**31),
    outcome=st.none() | st.sampled_from(Outcome),
)


@settings(max_examples=30)
@given(st.lists(records, max_size=4))
def test_a_segment_cut_at_any_byte_gives_back_exactly_the_whole_frames_before_the_cut(written: list) -> None:
    frames = [segment.encode(record) for record in written]
    data = b"".join(frames)
    ends = [0]
    for frame in frames:
        ends.append(ends[-1] + len(frame))
    for cut in range(len(data) + 1):
        whole = sum(end <= cut for end in ends) - 1
        chunk = segment.decode(data[:cut], 1000)
        assert chunk.records == written[:whole]
        assert chunk.end_bytes == ends[whole]
        assert chunk.tail is (Tail.CLEAN if cut == ends[whole] else Tail.TORN)


@given(st.lists(records, min_size=1, max_size=4), st.integers(1, 64))
def test_zeros_that_a_filesystem_leaves_behind_the_data_are_a_torn_tail(written: list, zeros: int) -> None:
    chunk = segment.decode(b"".join(map(segment.encode, written)) + bytes(zeros), 1000)
    assert (chunk.records, chunk.tail) == (written, Tail.TORN)


@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_a_flipped_bit_never_invents_or_changes_a_record(written: list, data: st.DataObject) -> None:
    raw = bytearray(b"".join(map(segment.encode, written)))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    chunk = segment.decode(bytes(raw), 1000)
    assert chunk.records == written[: len(chunk.records)]
    assert len(chunk.records) < len(written)
    assert chunk.tail in (Tail.TORN, Tail.DAMAGED)


@given(st.lists(records, max_size=12), st.integers(1, 5))
def test_reading_in_small_bites_gives_the_same_records(written: list, bite: int) -> None:
    data = b"".join(map(segment.encode, written))
    seen: list[UsageRecord] = []
    offset = 0
    while True:
        chunk = segment.decode(data[offset:], bite)
        seen += chunk.records
        offset += chunk.end_bytes
        if chunk.tail is not None:
            break
    assert seen == written


def test_a_frame_that_checks_but_is_no_usage_record_is_damage_not_a_torn_tail() -> None:
    body = b"\x81\xa1x\x01"
    frame = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
    assert segment.decode(frame, 10).tail is Tail.DAMAGED


def test_a_full_segment_is_left_for_the_next(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, segment_bytes=10)
    writer.append(b"0123456789")
    writer.append(b"ab")
    writer.close()
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"0123456789", b"ab"]


def test_after_a_failed_flush_the_same_segment_is_never_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SegmentWriter(tmp_path, segment_bytes=1000)
    with monkeypatch.context() as patched:
        patched.setattr(segment.os, "fdatasync", _fail)
        with pytest.raises(OSError, match="no space"):
            writer.append(b"first")
    writer.append(b"second")
    writer.close()
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"first", b"second"]


def _fail(fd: int) -> None:
    raise OSError(28, "no space")
