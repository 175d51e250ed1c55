"""What of a start is the model's: a line of input, and the weights are there and a token is made of them; a line out.

Everything else was done before "ready": ``weights`` and ``transformers`` have imported their libraries, ``attach`` has
a worker that waits warm, as the fleet keeps them. Each does it once, with ``static_batches.py``'s input.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx

from dataplane.contracts import headers
from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.replica import Attach, GetStatus, ReplicaState
from dataplane.fleet.control import ControlClient, ControlLostError

_CONTEXT_TOKENS, _PATIENCE_S, _LOOK_EVERY_S = 1024, 60.0, 0.005
_ENGINE = EngineSettings(max_model_len=_CONTEXT_TOKENS)


def weights(model: Path, runtime: Path) -> Callable[[list[int]], None]:
    """Return what loads our packed weights and computes a prompt."""
    from rig import Rig

    from dataplane.model.loader import load

    def begin(prompt: list[int]) -> None:
        rig = Rig(load(model, runtime, _ENGINE, lambda *_: None), 1, _CONTEXT_TOKENS, len(prompt))
        rig.submit(0, len(prompt), 1)
        rig.step()

    return begin


def transformers(model: Path, runtime: Path) -> Callable[[list[int]], None]:
    """Return what loads the weights by ``from_pretrained`` and computes a prompt."""
    import torch
    from transformers import LlamaForCausalLM  # what the bundled model is; by name, so that it is imported now

    torch.set_num_threads(os.cpu_count() or 1)

    @torch.inference_mode()
    def begin(prompt: list[int]) -> None:
        loaded = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True).eval()
        loaded(torch.tensor([prompt]), logits_to_keep=1)

    return begin


class Warm:
    """A worker that waits for a model.

    Args:
        folder: where its sockets are.
        model, runtime: what it will be given.
    """

    def __init__(self, folder: Path, model: Path, runtime: Path) -> None:
        self._socket, self._control = folder / "http", ControlClient(folder / "control")
        self._arguments = ["--socket", str(self._socket), "--control-socket", str(folder / "control")]
        self._call = Attach(
            deployment_id="dep_a",
            version_id="ver_a",
            version_digest="",
            model_dir=str(model),
            runtime_dir=str(runtime),
            served_name="model",
            engine=_ENGINE,
            tenants={},
            salt_secret=os.urandom(32),
        )

    async def start(self) -> None:
        """Start the process and wait until it is warm."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dataplane.worker", *self._arguments, stdout=sys.stderr
        )
        await self._until(ReplicaState.WARM_IDLE)

    async def stop(self) -> None:
        """End the process."""
        self._process.kill()
        await self._process.wait()

    async def begin(self, prompt: list[int]) -> None:
        """Attach the model and wait for its first token."""
        await self._control.call(self._call, _PATIENCE_S)
        await self._until(ReplicaState.WARMING)
        transport = httpx.AsyncHTTPTransport(uds=str(self._socket))
        names = {headers.DEPLOYMENT: "dep_a", headers.VERSION: "ver_a"}
        async with httpx.AsyncClient(transport=transport, base_url="http://worker", timeout=_PATIENCE_S) as client:
            body = {"model": "model", "prompt": prompt, "max_tokens": 1, "temperature": 0}
            (await client.post("/v1/completions", json=body, headers=names)).raise_for_status()

    async def _until(self, state: ReplicaState) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while await self._state() is not state:
                await asyncio.sleep(_LOOK_EVERY_S)

    async def _state(self) -> ReplicaState | None:
        try:
            return (await self._control.call(GetStatus(), _PATIENCE_S)).state
        except ControlLostError:
            return None  # its socket is not there yet


def main(way: str, model: Path, runtime: Path) -> None:
    """Prepare, say so, and start once for each line of the input."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner, ExitStack() as ending:
        if way == "attach":
            warm = Warm(Path(folder), model, runtime)
            runner.run(warm.start())
            ending.callback(lambda: runner.run(warm.stop()))
            begin: Callable[[list[int]], None] = lambda prompt: runner.run(warm.begin(prompt))  # noqa: E731
        else:
            begin = {"weights": weights, "transformers": transformers}[way](model, runtime)
        print("ready", flush=True)
        for line in sys.stdin:
            begin(json.loads(line)["prompts"][0])
            print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
