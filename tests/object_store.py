"""An S3 server that checks signatures, on a folder, and the credentials for it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import httpx
from ports import free_port

ACCESS_KEY, SECRET_KEY, BUCKET = "testkey", "test-secret-of-the-object-store", "models"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class ObjectStore:
    """A running server; what it keeps lies in ``folder``."""

    endpoint: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a process of the product needs to use it."""
        return {**CREDENTIALS, "PAGODA_STORE_URL": f"s3://{BUCKET}/pagoda", "PAGODA_S3_ENDPOINT": self.endpoint}


@contextlib.contextmanager
def running_object_store(folder: Path) -> Iterator[ObjectStore]:
    """Serve the buckets under ``folder``, with an empty one called :data:`BUCKET`."""
    (folder / BUCKET).mkdir(parents=True)
    port = free_port()
    command = [
        str(Path(sys.executable).with_name("rclone")), "serve", "s3", "--addr", f"127.0.0.1:{port}",
        "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--config", "/dev/null", str(folder),
    ]  # fmt: skip
    endpoint = f"http://127.0.0.1:{port}"
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "RCLONE_CACHE_DIR": str(folder.parent)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_until_it_answers(server, endpoint)
            with mock.patch.dict(os.environ, CREDENTIALS):
                yield ObjectStore(endpoint, folder)
        finally:
            server.kill()


def _wait_until_it_answers(server: subprocess.Popen[bytes], endpoint: str) -> None:
    transport = httpx.HTTPTransport(retries=8)  # pauses of 0.5 s, 1 s, ... between refused connections
    with httpx.Client(transport=transport, trust_env=False) as client:
        assert client.get(endpoint).status_code in (400, 403), "it answers without a signature"
    assert server.poll() is None
