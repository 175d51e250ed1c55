"""What the fleet reads from its environment. A missing or senseless value ends the start and is named."""

import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from dataplane.fleet import resources
from dataplane.fleet.plan import Policy

_LONGEST_SOCKET_NAME = "rep_01arz3ndektsv4rrffq69g5fav.ctl"
_MAX_SOCKET_PATH_BYTES = 100
_ASLEEP_SHARE = 0.25
"""Of the node's memory, for sleeping replicas where nobody said how much."""


class SettingsError(Exception):
    """The environment is not one the fleet can start in."""


class BucketAddress(msgspec.Struct, frozen=True):
    """A store that is a bucket: its name, what all names begin with, and its server where that is not Amazon's."""

    name: str
    prefix: str
    endpoint: str | None


class Settings(msgspec.Struct, frozen=True):
    """The fleet's settings; durations in seconds. ``run_dir`` is for sockets, whose paths must be short.

    ``blobs_dir`` is the store where that is a folder of this machine; else this node's copies of blobs in ``bucket``.
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


def read(environ: Mapping[str, str]) -> Settings:
    """Read and check the settings.

    Raises:
        SettingsError: a variable is missing or wrong; the sentence names it.
    """
    home = Path(_required(environ, "PAGODA_HOME")).resolve()
    blobs_dir, bucket = _store(environ, home)
    settings = Settings(
        home=home,
        run_dir=Path(environ.get("PAGODA_RUN_DIR") or home / "run"),
        blobs_dir=blobs_dir,
        bucket=bucket,
        redis_url=_required(environ, "REDIS_URL"),
        control_url=_required(environ, "PAGODA_CONTROL_URL"),
        internal_secret=_required(environ, "PAGODA_INTERNAL_SECRET"),
        cache_salt_secret=_secret(environ, "PAGODA_CACHE_SALT_SECRET"),
        port=int(_number(environ, "PAGODA_FLEET_PORT", None, 1, 65535)),
        hostname=socket.gethostname(),
        policy=Policy(
            warm_idle_floor=int(_number(environ, "PAGODA_WARM_IDLE_FLOOR", 1, 0, 1000)),
            max_processes=int(_number(environ, "PAGODA_MAX_PROCESSES", 16, 1, 10_000)),
            asleep_budget_bytes=_asleep_budget_bytes(environ),
        ),
        drain_s=_number(environ, "PAGODA_DRAIN_S", 30, 0, 3600),
        hang_s=_number(environ, "PAGODA_HANG_S", 8, 1, 600),
    )
    path = settings.run_dir / _LONGEST_SOCKET_NAME
    if len(str(path).encode()) > _MAX_SOCKET_PATH_BYTES:
        raise SettingsError(
            f"PAGODA_HOME is too long: a socket such as {path} must stay within {_MAX_SOCKET_PATH_BYTES} bytes. "
            "Choose a shorter folder, or set PAGODA_RUN_DIR to one for the sockets."
        )
    return settings


def _store(environ: Mapping[str, str], home: Path) -> tuple[Path, BucketAddress | None]:
    """Return where blobs are on this machine, and the bucket they are copies of, if they are."""
    url = environ.get("PAGODA_STORE_URL", "").strip()
    parts = urlsplit(url)
    if not url:
        return home / "store", None
    if parts.scheme == "file" and parts.path:
        return Path(unquote(parts.path)), None
    if parts.scheme == "s3" and parts.netloc:
        endpoint = environ.get("PAGODA_S3_ENDPOINT", "").strip() or None
        return home / "blobs", BucketAddress(parts.netloc, parts.path.strip("/"), endpoint)
    raise SettingsError("PAGODA_STORE_URL must be file:///folder or s3://bucket/prefix.")


def _asleep_budget_bytes(environ: Mapping[str, str]) -> int:
    share_mb = resources.memory_bytes() * _ASLEEP_SHARE // 2**20
    return int(_number(environ, "PAGODA_ASLEEP_MEMORY_MB", share_mb, 0, 1e9)) * 2**20


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set; the fleet does not start without it.")
    return value


def _secret(environ: Mapping[str, str], name: str) -> bytes:
    try:
        secret = bytes.fromhex(_required(environ, name))
    except ValueError as error:
        raise SettingsError(f"{name} must be written in hexadecimal.") from error
    if len(secret) < 32:
        raise SettingsError(f"{name} must have 32 bytes (64 hexadecimal digits) or more.")
    return secret


def _number(environ: Mapping[str, str], name: str, default: float | None, least: float, most: float) -> float:
    text = environ.get(name, "").strip()
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise SettingsError(f"{name} must be a number, not {text!r}.") from error
    if not least <= value <= most or (isinstance(default, int | None) and value != int(value)):
        raise SettingsError(f"{name} must be between {least:g} and {most:g}, not {text}.")
    return value
