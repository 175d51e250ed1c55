"""Frames on a Unix socket: a 4-byte big-endian length, then one MessagePack value of a closed union."""

import struct
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

MAX_FRAME_BYTES = 64 * 1024 * 1024
_HEADER = struct.Struct(">I")
_Message = TypeVar("_Message")


class FrameError(ValueError):
    """Bytes that are not a frame of the expected union: the connection is to be closed."""


def frame(message: msgspec.Struct) -> bytes:
    """Return the frame of ``message``.

    Raises:
        FrameError: longer than :data:`MAX_FRAME_BYTES`.
    """
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _HEADER.pack(len(body)) + body


class FrameReader(Generic[_Message]):
    """Cuts a byte stream into messages of one union; holds at most one unfinished frame."""

    def __init__(self, union: Any) -> None:  # noqa: ANN401 - a union of types has no type of its own
        self._decoder: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(union)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[_Message]:
        """Yield the messages that ``data`` completes.

        Raises:
            FrameError: a length over the limit, or a body that does not decode.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            try:
                yield self._decoder.decode(body)
            except msgspec.DecodeError as error:
                raise FrameError(str(error)) from error
