"""A scripted worker: speaks the real protocols over real sockets, and fails in the ways real ones rarely do on demand.

Its model folder says how it behaves, in ``behaviour.json``: ``load`` is ``ok``, ``crash``, ``give_up`` or ``stall``;
``generate`` is ``ok``, ``error`` or ``empty``; ``live_s`` ends it that long after READY, ``drain_s`` is how long a
drain takes; ``sleep`` is ``ok`` or ``busy``, ``wake`` is ``ok`` or ``fail``; ``memory_bytes`` is what it says it holds.
``POST /hang`` on its HTTP socket makes work pending that never progresses; ``GET /told`` answers with the
control messages it was sent and its environment.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from dataplane.contracts.generation import EngineLoad, TenantLoad
from dataplane.contracts.replica import (
    AddService,
    Attach,
    ControlCall,
    Drain,
    GetStatus,
    MarkReady,
    Refused,
    ReplicaState,
    SetShares,
    Sleep,
    Status,
    Wake,
)
from dataplane.contracts.wire import FrameReader, frame

State = ReplicaState
LOAD = EngineLoad(
    step=0, num_running=0, num_waiting=0, total_blocks=1000, free_blocks=1000, cached_blocks=0, owned_blocks=0,
    block_size=8, num_preemptions=0, prefix_cache_queries_tokens=0, prefix_cache_hits_tokens=0, prompt_tokens=0,
    generation_tokens=0,
)  # fmt: skip


class FakeWorker:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.replica_id = arguments.replica_id
        self.state = State.WARM_IDLE
        self.cause = "started"
        self.progress = 0
        self.pending = 0
        self.behaviour: dict = {}
        self.told: list[str] = []
        self.shares: Attach | SetShares | None = None
        self.requests: list[dict] = []
        self.ended = asyncio.Event()
        self.child = subprocess.Popen(["sleep", "3600"])

    def status(self) -> Status:
        return Status(
            replica_id=self.replica_id,
            state=self.state,
            progress=self.progress,
            pending=self.pending,
            cause=self.cause,
            kernels="fake",
            context_tokens=64,
            memory_bytes=self.behaviour.get("memory_bytes", 0),
            load=None if self.shares is None else LOAD,
            tenants=self.tenants(),
            shares_number=self.shares.number if isinstance(self.shares, SetShares) else 0,
        )

    def tenants(self) -> list[TenantLoad]:
        """What it was told is in force at once."""
        if self.shares is None:
            return []
        uses = self.behaviour.get("owned_blocks", {})
        return [
            TenantLoad(
                tenant_id=tenant_id,
                guarantee_blocks=lease.guarantee_blocks,
                cap_blocks=LOAD.total_blocks if lease.cap_blocks is None else lease.cap_blocks,
                weight=self.shares.tenants[tenant_id].weight,
                owned_blocks=uses.get(tenant_id, 0),
                cached_blocks=0,
                num_running=0,
                num_waiting=0,
                service=0.0,
            )
            for tenant_id, lease in self.shares.leases.items()
        ]

    # --- control socket

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames: FrameReader[ControlCall] = FrameReader(ControlCall)
        while data := await reader.read(65536):
            for call in frames.feed(data):
                writer.write(frame(self.answer(call)))
            await writer.drain()
        writer.close()

    def answer(self, call: ControlCall) -> Status | Refused:
        if not isinstance(call, GetStatus | AddService):
            self.told.append(type(call).__name__)
        match call:
            case Attach():
                if self.state is not State.WARM_IDLE:
                    return Refused(code="state", message=f"cannot attach while {self.state.value}")
                self.state = State.LOADING
                self.shares = call
                self.behaviour = json.loads((Path(call.model_dir) / "behaviour.json").read_text())
                self.loading = asyncio.create_task(self.load())
            case SetShares():
                self.shares = call
            case MarkReady():
                self.state = State.READY
                if "live_s" in self.behaviour:
                    asyncio.get_running_loop().call_later(self.behaviour["live_s"], sys.exit, 4)
            case Sleep():
                if self.behaviour.get("sleep") == "busy":
                    return Refused(code="not_allowed", message="1 requests are running")
                self.state = State.ASLEEP
            case Wake():
                self.state, self.cause = State.WARMING, "told to wake"
                if self.behaviour.get("wake") == "fail":
                    self.state, self.cause = State.STOPPED, "no memory for a KV pool"
            case Drain():
                self.state = State.DRAINING
                asyncio.get_running_loop().call_later(self.behaviour.get("drain_s", 0), self.ended.set)
        return self.status()

    async def load(self) -> None:
        match self.behaviour.get("load", "ok"):
            case "crash":
                sys.stderr.write("a weight is missing\n")
                os._exit(3)
            case "give_up":
                self.state, self.cause = State.STOPPED, "the model cannot be loaded: rope type is unknown"
                return
            case "stall":
                return
        for _ in range(5):
            self.progress += 1
            await asyncio.sleep(self.behaviour.get("load_s", 0.05) / 5)
        self.state = State.WARMING

    # --- HTTP socket

    async def http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        request, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = request.split(" ")
        status, answer = self.respond(method, path, headers, body)
        raw = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(raw)}\r\nconnection: close\r\n\r\n".encode() + raw)
        await writer.drain()
        writer.close()

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict | str]:
        if path == "/hang":
            self.pending = 1
            return 200, {}
        if path == "/told":
            return 200, {
                "told": self.told,
                "shares": self.shares and msgspec.to_builtins(self.shares.tenants),
                "leases": self.shares and msgspec.to_builtins(self.shares.leases),
                "environment": dict(os.environ),
                "requests": self.requests,
                "session": os.getsid(0),
            }
        if self.state not in {State.WARMING, State.READY}:
            return 503, {"error": "not ready"}
        self.requests.append({"headers": headers, "body": json.loads(body)})
        match self.behaviour.get("generate", "ok"):
            case "error":
                return 500, {"error": {"message": "the logits are not finite", "code": "request_failed"}}
            case "empty":
                return 200, {"usage": {"completion_tokens": 0}}
        self.progress += 1
        if json.loads(body).get("stream"):
            return 200, 8 * 'data: {"choices": [{}]}\n\n' + "data: [DONE]\n\n"
        usage = {"prompt_tokens": 96, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        return 200, {"choices": [{"text": "hi"}], "usage": usage}


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("socket", "control-socket", "spool-dir", "runtime-dir", "control-url", "replica-id"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    worker = FakeWorker(arguments)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.ended.set)
    http = await asyncio.start_unix_server(worker.http, arguments.socket)
    control = await asyncio.start_unix_server(worker.control, arguments.control_socket)
    await worker.ended.wait()
    worker.child.kill()
    worker.child.wait()
    http.close()
    control.close()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
