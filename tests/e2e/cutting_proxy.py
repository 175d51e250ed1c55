"""Stands between a browser and the console, and breaks connections in the middle of what they send."""

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_CHUNK_BYTES = 64 * 1024
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Passes bytes on. What is sent to the console is counted over all connections.

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
                console = socket.create_connection(self._target)
                for run in (self._pass_up, self._pass_down):
                    threading.Thread(target=run, args=(browser, console), daemon=True).start()

    def _pass_up(self, browser: socket.socket, console: socket.socket) -> None:
        with suppress(OSError):
            while chunk := browser.recv(_CHUNK_BYTES):
                self._flowing.wait()
                if self._is_cut(len(chunk)):
                    browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
                    break
                console.sendall(chunk)
        self._end(browser, console)

    def _pass_down(self, browser: socket.socket, console: socket.socket) -> None:
        with suppress(OSError):
            while chunk := console.recv(_CHUNK_BYTES):
                browser.sendall(chunk)
        self._end(browser, console)

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

    @staticmethod
    def _end(*ends: socket.socket) -> None:
        for end in ends:
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
