"""A receiver of webhooks: a real HTTP server that keeps what it was sent and answers as it is told.

Its check of signatures is the specification put into hashlib, and shares nothing with the product.
"""

import base64
import hashlib
import hmac
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Received:
    """One request: its headers, by lower-case names, and its body."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What arrived, and how the next request is answered: by a status, or by a function of the raw connection."""

    port: int = 0
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    instead: Callable[[BaseHTTPRequestHandler], None] | None = None
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks?from=pagoda"


def by_hand(secret: bytes, message_id: str, unix_s: int, body: bytes) -> str:
    """HMAC as RFC 2104 writes it, over ``id.timestamp.body``."""
    key = (secret if len(secret) <= 64 else hashlib.sha256(secret).digest()).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + f"{message_id}.{unix_s}.".encode() + body).digest()
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()
    return "v1," + base64.b64encode(outer).decode()


def is_accepted(headers: dict[str, str], body: bytes, secret_text: str) -> bool:
    """A receiver's check: any of the signatures is the one that its secret makes."""
    secret = base64.b64decode(secret_text.removeprefix("whsec_"))
    expected = by_hand(secret, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    return any(hmac.compare_digest(each, expected) for each in headers["webhook-signature"].split(" "))


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Listen on a free port of 127.0.0.1 until the block ends."""
    told = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            told.received.append(Received(self.path, headers, body))
            if told.instead is not None:
                told.instead(self)
                return
            self.send_response(told.status)
            for name, value in told.headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass  # a caller that leaves is what some tests are about

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        told.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield told
        finally:
            server.shutdown()
            thread.join()
