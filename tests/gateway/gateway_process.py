"""``python -m dataplane.gateway`` as a child of the test, in front of a harness's doubles."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from gateway_harness import Harness
from gateway_world import PEPPER, SECRET
from ports import free_port


def environment(g: Harness, port: int, control_url: str = "", home: Path | None = None) -> dict[str, str]:
    """What a gateway is told; ``home`` is the harness's where it is the only one."""
    return os.environ | {
        "PAGODA_HOME": str(home or g.home),
        "REDIS_URL": g.redis_url,
        "PAGODA_CONTROL_URL": control_url or g.outside.url,
        "PAGODA_FLEET_URL": g.outside.url,
        "PAGODA_INTERNAL_SECRET": SECRET,
        "PAGODA_KEY_PEPPERS": f"p1:{PEPPER.hex()}",
        "PAGODA_GATEWAY_PORT": str(port),
    }


@asynccontextmanager
async def process(
    g: Harness, log: Path, control_url: str = "", home: Path | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """Run one until it has a catalog; the harness's calls go to it."""
    port = free_port()
    environ = environment(g, port, control_url, home)
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dataplane.gateway", env=environ, stdout=output, stderr=output
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            g.client = client
            await _until_serving(child, client)
            yield child, client
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _until_serving(child: asyncio.subprocess.Process, client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(90):
        while child.returncode is None:
            try:
                if (await client.get("/health")).json().get("catalog"):
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.02)
    raise AssertionError("the gateway ended at its start")
