"""The shipping side of a spool: batches to the control plane, idempotent, and a segment goes only after its receipt."""

import asyncio
import os
import random
from contextlib import closing
from pathlib import Path

import httpx
import msgspec
import structlog

from dataplane.contracts.internal_calls import authorization
from dataplane.contracts.usage import UsageBatch, UsageReceipt, UsageRecord
from dataplane.spool import folder, segment
from dataplane.spool.segment import Tail

_PATH = "/internal/usage"
_BATCH_RECORDS = 500
_POLL_S = 0.25
_BACKOFF_FIRST_S = 0.2
_BACKOFF_LAST_S = 10.0
_TIMEOUT_S = 15.0
_REFUSED_FOR_GOOD = frozenset({400, 413, 422})
_log = structlog.get_logger(__name__)


class ShipError(Exception):
    """The control plane did not acknowledge a batch; it is sent again later."""


class Shipper:
    """Ships every spool under ``root`` whose writer is this process or is dead.

    How far the living segment is shipped is kept in memory only: after a crash at most one segment is sent twice, and
    the receiver drops what it knows.

    Args:
        root: the node's spool folder.
        control_url: base URL of the control plane.
        internal_secret: the bearer secret of internal calls.
        transport: where requests go instead of the network; for tests.
    """

    def __init__(
        self,
        root: Path,
        control_url: str,
        internal_secret: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._root = root
        self._url = control_url.rstrip("/") + _PATH
        self._headers = {"authorization": authorization(internal_secret), "content-type": "application/msgpack"}
        self._transport = transport
        self._shipped_bytes: dict[Path, int] = {}

    async def run(self) -> None:
        """Ship until cancelled. While the control plane is away: exponential back-off with full jitter."""
        failures = 0
        async with self._client() as client:
            while True:
                try:
                    shipped = await self._ship_all(client)
                except (ShipError, httpx.HTTPError, OSError) as error:
                    ceiling_s = min(_BACKOFF_LAST_S, _BACKOFF_FIRST_S * 2**failures)
                    failures = min(failures + 1, 16)
                    _log.warning("usage_not_shipped", error=str(error) or type(error).__name__, failures=failures)
                    await asyncio.sleep(random.uniform(0, ceiling_s))  # noqa: S311 - spreads retries, hides nothing
                else:
                    failures = 0
                    if shipped == 0:
                        await asyncio.sleep(_POLL_S)

    async def flush(self) -> int:
        """Ship what is there now, once, and return how many records were acknowledged.

        Raises:
            ShipError, httpx.HTTPError, OSError: the rest stays for a later shipper.
        """
        async with self._client() as client:
            return await self._ship_all(client)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=self._headers, timeout=_TIMEOUT_S, transport=self._transport, trust_env=False)

    async def _ship_all(self, client: httpx.AsyncClient) -> int:
        shipped = 0
        with closing(folder.shippable(self._root)) as spools:
            for spool in spools:
                segments = spool.segments()
                for index, path in enumerate(segments):
                    # The newest segment of a living writer is still being written.
                    finished = not spool.own or index + 1 < len(segments)
                    shipped += await self._ship_segment(client, path, finished)
                if not spool.own:
                    spool.remove()
        return shipped

    async def _ship_segment(self, client: httpx.AsyncClient, path: Path, finished: bool) -> int:
        shipped = 0
        while True:
            chunk = await asyncio.to_thread(segment.read, path, self._shipped_bytes.get(path, 0), _BATCH_RECORDS)
            if chunk.records:
                await self._post(client, chunk.records)
                shipped += len(chunk.records)
                self._shipped_bytes[path] = chunk.end_bytes
            if chunk.tail is not None:
                break
        if finished:
            self._retire(path, chunk.end_bytes, chunk.tail)
        return shipped

    def _retire(self, path: Path, end_bytes: int, tail: Tail) -> None:
        if tail is not Tail.CLEAN:
            lost_bytes = path.stat().st_size - end_bytes
            _log.warning("spool_tail", segment=str(path), tail=tail.value, unread_bytes=lost_bytes)
        if tail is Tail.DAMAGED:
            kept = self._root / folder.DAMAGED
            kept.mkdir(exist_ok=True, mode=0o700)
            path.rename(kept / f"{path.parent.name}-{path.name}")
        else:
            path.unlink(missing_ok=True)
        self._shipped_bytes.pop(path, None)

    async def _post(self, client: httpx.AsyncClient, records: list[UsageRecord]) -> None:
        """Return once every record is acknowledged, or set aside because it never can be.

        Raises:
            ShipError: an answer that is no receipt.
            httpx.HTTPError: no answer.
        """
        answer = await client.post(self._url, content=msgspec.msgpack.encode(UsageBatch(tuple(records))))
        if answer.status_code in _REFUSED_FOR_GOOD:
            await self._isolate(client, records, answer.status_code)
            return
        if answer.status_code != httpx.codes.OK:
            raise ShipError(f"{self._url} answered {answer.status_code}")
        try:
            receipt = msgspec.json.decode(answer.content, type=UsageReceipt)
        except msgspec.DecodeError as error:
            raise ShipError(f"{self._url} answered no receipt: {error}") from error
        if receipt.accepted + receipt.duplicates != len(records):
            raise ShipError(f"{self._url} acknowledged {receipt.accepted + receipt.duplicates} of {len(records)}")

    async def _isolate(self, client: httpx.AsyncClient, records: list[UsageRecord], status: int) -> None:
        """Halve a refused batch until the one bad record is alone; it must not hold back its neighbours for ever."""
        if len(records) == 1:
            _log.error("usage_record_refused", status=status, request_id=records[0].request_id, kind=records[0].kind)
            await asyncio.to_thread(_set_aside, self._root / f"rejected{segment.SUFFIX}", records[0])
            return
        middle = len(records) // 2
        await self._post(client, records[:middle])
        await self._post(client, records[middle:])


def _set_aside(path: Path, record: UsageRecord) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, segment.encode(record))
        os.fdatasync(fd)
    finally:
        os.close(fd)
