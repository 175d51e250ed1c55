"""Stands between a browser and the console, and breaks connections in the middle of what they send."""

import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_CHUNK_BYTES = 64 * 1024
_REQUEST = re.compile(rb"(?:GET|POST|PUT) (?P<part>/\S+/files/[^/\s]+/parts/\d+)?")
"""How a chunk begins that begins a request: the browser sends none on a connection before it has had an answer."""
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Passes bytes on, and counts what is sent to the console over all connections.

    ``begun`` and ``arrived`` count by path how often a part was sent, and how often the console said that it has it: a
    browser sends a request again on its own where a connection that it kept open breaks, and tells no page of it.

    Args:
        target_port: the console's, on this machine.
        cut_at: at each of these counts of bytes, in order, the connection that reaches it is cut.
        hold_at: at each of these, everything that is sent stops until :meth:`release`.
    """

    def __init__(self, target_port: int, *, cut_at: Sequence[int] = (), hold_at: Sequence[int] = ()) -> None:
        self._target = ("127.0.0.1", target_port)
        self._cut_at, self._hold_at = list(cut_at), list(hold_at)
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._held = threading.Event()
        self._sent_bytes = 0
        self.num_cuts = 0
        self.begun: Counter[str] = Counter()
        self.arrived: Counter[str] = Counter()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_until_held(self) -> None:
        """Wait until the next hold is reached."""
        assert self._held.wait(60), f"only {self._sent_bytes} bytes were sent"

    def release(self) -> None:
        """Let everything flow on."""
        self._held.clear()
        self._flowing.set()

    def close(self) -> None:
        """Take no more connections, and let those that are held go."""
        self._hold_at.clear()
        self.release()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                browser, _ = self._listener.accept()
                line = _Line(browser, socket.create_connection(self._target))
                for run in (self._pass_up, self._pass_down):
                    threading.Thread(target=run, args=(line,), daemon=True).start()

    def _pass_up(self, line: "_Line") -> None:
        browser, console = line.browser, line.console
        with suppress(OSError):
            while chunk := browser.recv(_CHUNK_BYTES):
                self._flowing.wait()
                if request := _REQUEST.match(chunk):
                    line.part = request["part"].decode() if request["part"] else ""
                    self.begun.update([line.part] if line.part else [])
                if self._is_cut(len(chunk)):
                    browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
                    break
                console.sendall(chunk)
        line.end()

    def _pass_down(self, line: "_Line") -> None:
        with suppress(OSError):
            while chunk := line.console.recv(_CHUNK_BYTES):
                if line.part and chunk.startswith(b"HTTP/1.1 200 "):
                    self.arrived.update([line.part])
                line.browser.sendall(chunk)
        line.end()

    def _is_cut(self, num_bytes: int) -> bool:
        with self._lock:
            self._sent_bytes += num_bytes
            if self._hold_at and self._sent_bytes >= self._hold_at[0]:
                self._hold_at.pop(0)
                self._flowing.clear()
                self._held.set()
            cut = bool(self._cut_at) and self._sent_bytes >= self._cut_at[0]
            if cut:
                self._cut_at.pop(0)
                self.num_cuts += 1
            return cut


@dataclass
class _Line:
    """Two connections as one. ``part`` is the path of the part that is on its way, if one is."""

    browser: socket.socket
    console: socket.socket
    part: str = ""

    def end(self) -> None:
        for end in (self.browser, self.console):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def cutting_proxy(target_port: int, **when: Sequence[int]) -> Iterator[CuttingProxy]:
    """Run a proxy."""
    proxy = CuttingProxy(target_port, **when)
    try:
        yield proxy
    finally:
        proxy.close()
