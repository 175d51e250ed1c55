"""A stand-in for the control plane's internal HTTP: serves a catalog, takes fleet reports, goes away on request."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Catalog
from dataplane.contracts.replica import FleetReport

SECRET = "internal-secret-of-the-tests"


class ControlDouble:
    """Attributes may be changed at any time from the test.

    ``catalog`` is served as it is; ``reports`` are the fleet reports taken; ``broken`` answers 503 to everything.
    """

    def __init__(self, catalog: Catalog | None = None) -> None:
        self.catalog = catalog or contract.empty()
        self.reports: list[FleetReport] = []
        self.broken = False
        self._reported = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, report: FleetReport) -> None:
        with self._reported:
            self.reports.append(report)
            self._reported.notify_all()

    def wait_for_report(self, wanted: Callable[[list[FleetReport]], bool], timeout_s: float = 60.0) -> None:
        """Return once ``wanted`` holds for all reports so far; fail the test otherwise."""
        with self._reported:
            assert self._reported.wait_for(lambda: wanted(self.reports), timeout_s), self.reports[-1:]


def _handler(control: ControlDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if self._refused() or url.path != "/internal/catalog":
                return self._answer(404)
            after = int(parse_qs(url.query).get("after", ["-1"])[0])
            if after == control.catalog.number:
                return self._answer(304)
            return self._answer(200, contract.encode(control.catalog))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self._refused() or self.path != "/internal/replicas":
                return self._answer(404)
            control.take(msgspec.msgpack.decode(body, type=FleetReport))
            return self._answer(204)

        def _refused(self) -> bool:
            if control.broken:
                self._answer(503)
            elif self.headers["authorization"] != f"Bearer {SECRET}":
                self._answer(401)
            else:
                return False
            return True

        def _answer(self, status: int, body: bytes = b"") -> None:
            if getattr(self, "answered", False):
                return
            self.answered = True
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing: the tests read the outcome."""

    return Handler
