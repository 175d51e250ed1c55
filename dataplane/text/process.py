"""One tokenizer child as its parent sees it: the process and the socket to it."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator

from dataplane.contracts.generation import FromTokenizer
from dataplane.contracts.wire import FrameError, FrameReader


class TokenizerProcess:
    """A started child; :meth:`close` it in the end."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def spawn(cls, memory_bytes: int | None) -> "TokenizerProcess":
        """Start one, with ``memory_bytes`` of address space or the child's own default."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-I", "-m", "dataplane.text.child", "--fd", str(theirs.fileno())]
            if memory_bytes is not None:
                command += ["--memory-bytes", str(memory_bytes)]
            try:
                # No environment, no other descriptors, no output: a panic of the library may quote a prompt.
                process = await asyncio.create_subprocess_exec(
                    *command, env={}, pass_fds=[theirs.fileno()], start_new_session=True, cwd="/",
                    stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def has_ended(self) -> bool:
        """The process is gone."""
        return self.process.returncode is not None

    def send(self, raw: bytes) -> None:
        """Send one frame."""
        self._writer.write(raw)

    async def messages(self) -> AsyncIterator[FromTokenizer]:
        """Yield answers until the child ends or says something that is not one."""
        frames: FrameReader[FromTokenizer] = FrameReader(FromTokenizer)
        with contextlib.suppress(ConnectionError, FrameError):
            while data := await self._reader.read(1 << 16):
                for message in frames.feed(data):
                    yield message

    def kill(self) -> None:
        """End the child at once; :meth:`messages` ends soon after."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def close(self) -> int:
        """End the child and return how it ended."""
        self.kill()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        return await self.process.wait()
