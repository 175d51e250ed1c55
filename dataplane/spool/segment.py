"""The bytes of a segment: frames that a crash can tear only at the end, and that never read back as something else."""

import os
import struct
import zlib
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec

from dataplane import atomic_file
from dataplane.contracts.usage import UsageRecord

SUFFIX = ".seg"
_HEADER = struct.Struct(">II")  # body length in bytes, CRC32 of the body
_MAX_BODY_BYTES = 64 * 1024
_DECODER = msgspec.msgpack.Decoder(UsageRecord)


class Tail(Enum):
    """What lies behind the last good frame."""

    CLEAN = "clean"
    TORN = "torn"
    """The last write was cut: an unfinished frame, or zeros that the filesystem left."""
    DAMAGED = "damaged"
    """A whole frame that does not check or decode: no crash of ours explains it."""


class Chunk(NamedTuple):
    """Records read, the offset in bytes behind the last of them, and why reading stopped there.

    ``tail`` is None where only the caller's limit stopped it.
    """

    records: list[UsageRecord]
    end_bytes: int
    tail: Tail | None


def encode(record: UsageRecord) -> bytes:
    """Return the frame of ``record``.

    Raises:
        ValueError: over 64 KiB, which no field of a record needs.
    """
    body = msgspec.msgpack.encode(record)
    if len(body) > _MAX_BODY_BYTES:
        raise ValueError(f"a usage record of {len(body)} bytes is over the limit of {_MAX_BODY_BYTES}")
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


def decode(data: bytes, max_records: int) -> Chunk:
    """Read frames from the start of ``data`` until the limit, the end, or the first byte that is no frame."""
    records: list[UsageRecord] = []
    offset = 0
    while len(records) < max_records:
        if offset == len(data):
            return Chunk(records, offset, Tail.CLEAN)
        body = _body(data, offset)
        if isinstance(body, Tail):
            return Chunk(records, offset, body)
        try:
            records.append(_DECODER.decode(body))
        except msgspec.DecodeError:
            return Chunk(records, offset, Tail.DAMAGED)
        offset += _HEADER.size + len(body)
    return Chunk(records, offset, None)


def _body(data: bytes, offset: int) -> bytes | Tail:
    """Return the body of the frame at ``offset``, or what the bytes there are instead."""
    start = offset + _HEADER.size
    if start > len(data):
        return Tail.TORN
    length, checksum = _HEADER.unpack_from(data, offset)
    # Zeros would pass as an empty frame (the CRC32 of nothing is 0); a record is never empty.
    if length == 0 or length > _MAX_BODY_BYTES:
        return Tail.DAMAGED if any(data[offset:]) else Tail.TORN
    body = data[start : start + length]
    if len(body) < length:
        return Tail.TORN
    if zlib.crc32(body) != checksum:
        return Tail.TORN if start + length == len(data) else Tail.DAMAGED
    return body


def read(path: Path, offset_bytes: int, max_records: int) -> Chunk:
    """Read up to ``max_records`` of a segment file from ``offset_bytes`` on.

    ``end_bytes`` of the chunk counts from the file's start.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        file.seek(offset_bytes)
        chunk = decode(file.read(), max_records)
    return chunk._replace(end_bytes=offset_bytes + chunk.end_bytes)


class SegmentWriter:
    """Appends to numbered segments of one folder. Bytes are on the disk when :meth:`append` returns.

    Args:
        folder: where the segments are; this writer is the only one there.
        segment_bytes: a segment that reached this size is left for the next.
    """

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._number = -1
        self._fd = -1
        self._size_bytes = 0
        self._open_next()

    def append(self, data: bytes) -> None:
        """Write ``data`` and flush it to the disk.

        Raises:
            OSError: nothing of ``data`` may be taken as written; the caller keeps it and tries again.
        """
        if self._size_bytes >= self._segment_bytes:
            self._open_next()
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fdatasync(self._fd)
        except OSError:
            # The shipper may have read past the last good byte, so this segment is never written again: a second
            # copy in the next one is a duplicate that the receiver drops, a byte rewritten in place would be a lie.
            if os.fstat(self._fd).st_size:
                self._size_bytes = self._segment_bytes
            raise
        self._size_bytes += len(data)

    def close(self) -> None:
        """Close the current segment."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open_next(self) -> None:
        number = self._number + 1
        path = self._folder / f"{number:08d}{SUFFIX}"
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            atomic_file.sync_folder(self._folder)
        except OSError:
            os.close(fd)
            raise
        self.close()
        self._fd, self._number, self._size_bytes = fd, number, 0
