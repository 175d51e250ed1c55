"""A whole gateway on a real port in the test's own event loop, its neighbours played by doubles."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
import uvicorn
from fake_replica import FakeReplica, Script
from gateway_world import PEPPERS, SECRET, World, report
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dataplane.contracts import catalog as contract
from dataplane.contracts.catalog import Catalog
from dataplane.contracts.replica import Demand, ReplicaReport, ReplicaTable
from dataplane.contracts.usage import UsageBatch, UsageReceipt, UsageRecord
from dataplane.gateway.app import Gateway
from dataplane.gateway.settings import Settings
from dataplane.http_server.server import Server

NO_REDIS = "redis://127.0.0.1:9/0"
NOW_MS = 60_000
"""What the fleet's clock says: a replica that is READY since 0 is an old one."""
BODY = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16}


@asynccontextmanager
async def serving(server: uvicorn.Server, *, drain: bool) -> AsyncIterator[str]:
    """Run a server without its main loop, and where that is not tested without its drain: both idle for 0.1 s."""
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        if drain:
            await server.shutdown()
        for listener in server.servers:
            listener.close()


class Outside:
    """Control plane and fleet. ``records`` and ``demands`` are those taken; ``away`` answers 503 to everything."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.table = ReplicaTable(node="node", number=1, at_ms=NOW_MS, replicas=())
        self.records: list[UsageRecord] = []
        self.demands: list[Demand] = []
        self.away = False
        self.polls = 0
        self.closing = False
        self.changed = asyncio.Condition()
        self.url = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/internal/catalog", self._catalog),
                Route("/internal/usage", self._usage, methods=["POST"]),
                Route("/replicas", self._replicas),
                Route("/demand", self._demand, methods=["POST"]),
            ]
        )

    async def publish(self, replicas: Sequence[ReplicaReport]) -> None:
        async with self.changed:
            self.table = ReplicaTable(node="node", number=self.table.number + 1, at_ms=NOW_MS, replicas=tuple(replicas))
            self.changed.notify_all()

    async def close(self) -> None:
        """Let go of the fleet's long polls."""
        async with self.changed:
            self.closing = True
            self.changed.notify_all()

    def _refused(self, request: Request) -> Response | None:
        if self.away:
            return Response(status_code=503)
        if request.headers.get("authorization") != f"Bearer {SECRET}":
            return Response(status_code=401)
        return None

    async def _catalog(self, request: Request) -> Response:
        self.polls += 1
        if refused := self._refused(request):
            return refused
        if int(request.query_params.get("after", "-1")) >= self.catalog.number:
            return Response(status_code=304)
        return Response(contract.encode(self.catalog))

    async def _usage(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        batch = msgspec.msgpack.decode(await request.body(), type=UsageBatch)
        async with self.changed:
            self.records += batch.records
            self.changed.notify_all()
        return Response(msgspec.json.encode(UsageReceipt(accepted=len(batch.records), duplicates=0)))

    async def _replicas(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        after = int(request.query_params.get("after", "0"))
        try:
            async with asyncio.timeout(float(request.query_params.get("wait_s", "0"))), self.changed:
                await self.changed.wait_for(lambda: self.table.number > after or self.closing)
        except TimeoutError:
            pass
        return Response(msgspec.json.encode(self.table))

    async def _demand(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        demand = msgspec.json.decode(await request.body(), type=Demand)
        async with self.changed:
            self.demands.append(demand)
            self.changed.notify_all()
        return Response(status_code=204)

    async def until_demand(self, waiting: dict[str, int]) -> None:
        """Return once the newest demand is ``waiting``."""
        async with asyncio.timeout(90), self.changed:
            await self.changed.wait_for(lambda: bool(self.demands) and self.demands[-1].waiting == waiting)

    async def until_records(self, count: int) -> list[UsageRecord]:
        """Return the records once there are ``count``; fail the test where they do not come."""
        async with asyncio.timeout(90), self.changed:
            await self.changed.wait_for(lambda: len(self.records) >= count)
        return self.records


class Harness:
    """The gateway, its doubles, and a client. Made by :func:`gateway`."""

    def __init__(self, world: World, home: Path, redis_url: str, **bounds: Any) -> None:
        self.world = world
        self.home = home
        self.redis_url = redis_url
        self.bounds = {"catalog_poll_s": 0.05, "redis_timeout_s": 30.0} | bounds
        self.outside = Outside(world.catalog())
        self.replicas: list[FakeReplica] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        doubles = uvicorn.Config(self.outside.app(), port=0, log_config=None, access_log=False, lifespan="off")
        self.outside.url = await self._stack.enter_async_context(serving(uvicorn.Server(doubles), drain=False))
        self._stack.push_async_callback(self.outside.close)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def start(self) -> None:
        """Start the gateway and wait until it knows catalog and replicas."""
        self.gateway = Gateway(
            Settings(
                home=self.home,
                redis_url=self.redis_url,
                control_url=self.outside.url,
                fleet_url=self.outside.url,
                internal_secret=SECRET,
                peppers=PEPPERS,
                **self.bounds,
            )
        )
        self.server = Server(self.gateway.app, graceful_s=1)
        self.server.config.port = 0
        await self._stack.enter_async_context(self.gateway.informed())
        self.url = await self._stack.enter_async_context(serving(self.server, drain=True))
        self.client = await self._stack.enter_async_context(
            httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=60)
        )
        await self.settled()

    async def settled(self) -> None:
        """Return once the gateway has taken the doubles' newest catalog and table."""
        async with asyncio.timeout(90):
            while (
                not self.outside.away and self.gateway._snapshot.catalog.number < self.outside.catalog.number
            ) or self.gateway.replicas._replicas != self.outside.table.replicas:
                await asyncio.sleep(0.005)

    async def add_replica(self, script: Script | None = None, **fields: Any) -> FakeReplica:
        """Start one more READY replica; the fleet shows it at once."""
        number = len(self.replicas)
        replica = FakeReplica(self.home / f"r{number}.sock", script)
        await self._stack.enter_async_context(replica)
        self.replicas.append(replica)
        shown = report(f"rep_{number}", replica.socket, **fields)
        await self.outside.publish([*self.outside.table.replicas, shown])
        return replica

    async def change_catalog(self) -> None:
        """Publish the world as it is now, on the control plane's path only, and wait until it is in force."""
        self.outside.catalog = self.world.catalog()
        await self.settled()

    def headers(self, key: str | None = None) -> dict[str, str]:
        return {"authorization": f"Bearer {key or self.world.acme_key.text}"}

    async def post(
        self, body: dict[str, Any] | bytes = BODY, key: str | None = None, path: str = "/v1/chat/completions",
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:  # fmt: skip
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(path, content=content, headers=self.headers(key) | (headers or {}))

    async def post_alone(self, body: dict[str, Any], key: str | None = None) -> httpx.Response:
        """Post on a connection without a client: with hundreds, httpx's pool would be the slowest part of a test."""
        raw = json.dumps(body).encode()
        head = {"host": "gateway", "content-length": str(len(raw)), "connection": "close"} | self.headers(key)
        reader, writer = await asyncio.open_connection(self.client.base_url.host, self.client.base_url.port)
        lines = ["POST /v1/chat/completions HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + raw)
        answer, _, content = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status, *fields = answer.decode().split("\r\n")
        return httpx.Response(
            int(status.split()[1]), headers=[tuple(field.split(": ", 1)) for field in fields], content=content
        )

    @asynccontextmanager
    async def streaming(self, key: str | None = None, **changes: Any) -> AsyncIterator[httpx.Response]:
        body = json.dumps(BODY | {"stream": True} | changes).encode()
        async with self.client.stream(
            "POST", "/v1/chat/completions", content=body, headers=self.headers(key)
        ) as response:
            yield response

    async def stream(self, key: str | None = None, **changes: Any) -> tuple[httpx.Response, list[str]]:
        """Return the response and the data of every event of a stream, up to its clean end."""
        async with self.streaming(key, **changes) as response:
            text = (await response.aread()).decode()
        return response, events(text)

    async def records(self, count: int) -> list[UsageRecord]:
        return await self.outside.until_records(count)


def events(text: str) -> list[str]:
    """Return the data of the events of a finished stream; anything that is no event fails."""
    assert text.endswith("\n\n"), text
    found = []
    for event in text[:-2].split("\n\n"):
        assert event.startswith("data: "), event
        assert "\n" not in event, event
        found.append(event.removeprefix("data: "))
    return found


def error_of(data: str | bytes) -> dict[str, Any]:
    return json.loads(data)["error"]


@asynccontextmanager
async def gateway(world: World, home: Path, redis_url: str, replicas: int = 1, **bounds: Any) -> AsyncIterator[Harness]:
    """Start a harness with ``replicas`` READY replicas of acme's ``chat``."""
    async with Harness(world, home, redis_url, **bounds) as harness:
        for _ in range(replicas):
            await harness.add_replica()
        await harness.start()
        yield harness
