"""Doors to listen on, and the server behind them, from its start to a graceful end."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import uvicorn

from dataplane.http_server.asgi import App
from dataplane.http_server.protocol import BoundedProtocol

_BACKLOG = 4096
_KEEP_ALIVE_S = 75


class ListenError(Exception):
    """An address that cannot be listened on; the sentence names it."""

    def __init__(self, address: object, error: OSError) -> None:
        super().__init__(f"cannot listen on {address}: {error.strerror}; free it, or choose another.")


def open_port(host: str, port: int) -> socket.socket:
    """Listen on a TCP port; 0 takes a free one.

    Raises:
        ListenError: it is taken, or the host is not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ListenError(f"{host}:{port}", error) from error


@contextmanager
def open_path(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket that only this user may connect to; its file goes with the block.

    Raises:
        ListenError: there can be no socket of that path.
    """
    with socket.socket(socket.AF_UNIX) as door:
        try:
            path.unlink(missing_ok=True)
            door.bind(str(path))
            path.chmod(0o600)
            door.listen(_BACKLOG)
        except OSError as error:
            raise ListenError(path, error) from error
        try:
            yield door
        finally:
            path.unlink(missing_ok=True)


class Server(uvicorn.Server):
    """uvicorn as every process of the data plane runs it.

    Args:
        app: an ASGI application, without a lifespan.
        graceful_s: what requests that run at the end are left; 0: nothing, a long poll must not hold the process.
        patience_s: how long a caller may leave a full buffer of its answer unread; None: the application sees to that.
    """

    def __init__(self, app: App, graceful_s: int, *, patience_s: float | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(BoundedProtocol, patience_s=patience_s),  # type: ignore[arg-type] # it is only called
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=graceful_s,
            )
        )

    def end(self) -> None:
        """Listen no more, and end when the running requests have."""
        self.should_exit = True
        self.force_exit = self.config.timeout_graceful_shutdown == 0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process, which has more to end than its server; uvicorn would raise them again."""
        yield


@asynccontextmanager
async def serving(
    app: App, doors: Sequence[socket.socket], graceful_s: int, *, patience_s: float | None = None
) -> AsyncIterator["asyncio.Task[None]"]:
    """Serve ``app`` at open ``doors`` while the block runs, which gets the server's task; see :class:`Server`."""
    server = Server(app, graceful_s, patience_s=patience_s)
    task = asyncio.create_task(server.serve(list(doors)))
    try:
        yield task
    finally:
        server.end()
        await task


def on_end_signals(handle: Callable[[], None]) -> None:
    """Call ``handle`` on the running loop at every SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, handle)
