"""What the fleet reads from its environment."""

import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dataplane.contracts import blob_store
from dataplane.contracts.blob_store import BucketAddress
from dataplane.environment import Environment
from dataplane.fleet import resources
from dataplane.fleet.plan import Policy

_LONGEST_SOCKET_NAME = "rep_01arz3ndektsv4rrffq69g5fav.ctl"
_MAX_SOCKET_PATH_BYTES = 100
_ASLEEP_SHARE = 0.25
"""Of the node's memory, for sleeping replicas where nobody said how much."""


class Settings(msgspec.Struct, frozen=True):
    """The fleet's settings; durations in seconds. ``run_dir`` is for sockets, whose paths must be short.

    ``blobs_dir`` is the store where that is a folder of this machine; else this node's copies of blobs in ``bucket``.
    ``probe_share``: the part of the time in which replicas may be probed.
    """

    home: Path
    run_dir: Path
    blobs_dir: Path
    bucket: BucketAddress | None
    redis_url: str
    control_url: str
    internal_secret: str
    cache_salt_secret: bytes
    port: int
    hostname: str
    policy: Policy
    drain_s: float
    hang_s: float
    probe_share: float


def read(environ: Mapping[str, str]) -> Settings:
    """Read and check the settings.

    Raises:
        SettingsError: variables are missing or wrong; the message names each.
    """
    found = Environment(environ)
    home = Path(found.required("PAGODA_HOME")).resolve()
    blobs_dir, bucket = _store(found, home)
    settings = Settings(
        home=home,
        run_dir=Path(found.optional("PAGODA_RUN_DIR", str(home / "run"))),
        blobs_dir=blobs_dir,
        bucket=bucket,
        redis_url=found.url("REDIS_URL", "redis", "rediss", "unix"),
        control_url=found.url("PAGODA_CONTROL_URL", "http", "https"),
        internal_secret=found.required("PAGODA_INTERNAL_SECRET"),
        cache_salt_secret=found.secret("PAGODA_CACHE_SALT_SECRET", least_bytes=32),
        port=found.whole("PAGODA_FLEET_PORT", 1, 65535),
        hostname=socket.gethostname(),
        policy=Policy(
            warm_idle_floor=found.whole("PAGODA_WARM_IDLE_FLOOR", 0, 1000, default=1),
            max_processes=found.whole("PAGODA_MAX_PROCESSES", 1, 10_000, default=16),
            asleep_budget_bytes=_asleep_budget_bytes(found),
        ),
        drain_s=found.number("PAGODA_DRAIN_S", 0, 3600, default=30),
        hang_s=found.number("PAGODA_HANG_S", 1, 600, default=8),
        probe_share=found.number("PAGODA_PROBE_SHARE", 0, 0.5, default=0.02),
    )
    path = settings.run_dir / _LONGEST_SOCKET_NAME
    if len(str(path).encode()) > _MAX_SOCKET_PATH_BYTES:
        found.fault(
            f"PAGODA_HOME is too long: a socket such as {path} must stay within {_MAX_SOCKET_PATH_BYTES} bytes. "
            "Choose a shorter folder, or set PAGODA_RUN_DIR to one for the sockets."
        )
    found.check()
    return settings


def _store(found: Environment, home: Path) -> tuple[Path, BucketAddress | None]:
    """Return where blobs are on this machine, and the bucket they are copies of, if they are."""
    url = found.optional("PAGODA_STORE_URL")
    if not url:
        return home / "store", None
    try:
        address = blob_store.parse(url, s3_endpoint=found.optional("PAGODA_S3_ENDPOINT"))
    except ValueError as error:
        found.fault(f"PAGODA_STORE_URL: {error}.")
        return home / "store", None
    return (home / "blobs", address) if isinstance(address, BucketAddress) else (address, None)


def _asleep_budget_bytes(found: Environment) -> int:
    share_mb = int(resources.memory_bytes() * _ASLEEP_SHARE) // 2**20
    return found.whole("PAGODA_ASLEEP_MEMORY_MB", 0, 10**9, default=share_mb) * 2**20
