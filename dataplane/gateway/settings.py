"""What a gateway needs from its environment; a start with less is refused with every reason at once."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from dataplane.contracts import keys


class SettingsError(ValueError):
    """The environment does not describe a gateway; the message has one sentence per fault."""


class Settings(msgspec.Struct, frozen=True):
    """Where the gateway's neighbours are, and the bounds it keeps.

    The bounds are the product's promises, so they have one value each and no environment variable; tests change them.
    """

    home: Path
    redis_url: str
    control_url: str
    fleet_url: str
    internal_secret: str
    peppers: Mapping[str, bytes]
    host: str = "127.0.0.1"
    port: int = 0

    max_body_bytes: int = 4 * 1024 * 1024
    max_held_bytes: int = 256 * 1024 * 1024
    """Request bodies held in memory by all requests together; beyond it a request is refused as overload."""
    max_tenant_held_bytes: int = 64 * 1024 * 1024
    max_running: int = 4096
    body_timeout_s: float = 30.0
    max_cold_wait_s: float = 300.0
    """The longest that a caller may ask to wait for a replica."""
    max_cold_requests: int = 256
    """Waiting for one deployment, at all gateways together; as are the bytes."""
    max_cold_bytes: int = 64 * 1024 * 1024
    max_tenant_cold_requests: int = 1024
    heartbeat_s: float = 5.0
    stalled_client_s: float = 30.0
    silent_replica_s: float = 300.0
    """A replica that says nothing for so long is lost, whatever its socket says; the fleet finds a hang much sooner."""
    drain_s: float = 60.0
    catalog_poll_s: float = 0.5
    lease_ms: int = 10_000
    lease_renewal_s: float = 2.0
    redis_timeout_s: float = 1.0
    max_spool_bytes: int = 256 * 1024 * 1024

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Settings":
        """Read the environment.

        Raises:
            SettingsError: a variable is missing or malformed.
        """
        faults: list[str] = []

        def required(name: str) -> str:
            value = environ.get(name, "").strip()
            if not value:
                faults.append(f"{name} is not set.")
            return value

        def url(name: str, schemes: tuple[str, ...]) -> str:
            value = required(name)
            if value and urlsplit(value).scheme not in schemes:
                faults.append(f"{name} must be a URL that starts with one of {', '.join(f'{s}://' for s in schemes)}.")
            return value

        home = required("PAGODA_HOME")
        redis_url = url("REDIS_URL", ("redis", "rediss", "unix"))
        control_url = url("PAGODA_CONTROL_URL", ("http", "https"))
        fleet_url = url("PAGODA_FLEET_URL", ("http", "https"))
        internal_secret = required("PAGODA_INTERNAL_SECRET")
        peppers = _peppers(required("PAGODA_KEY_PEPPERS"), faults)
        port = _port(required("PAGODA_GATEWAY_PORT"), faults)
        if faults:
            raise SettingsError(" ".join(faults))
        return cls(
            home=Path(home).absolute(),
            redis_url=redis_url,
            control_url=control_url,
            fleet_url=fleet_url,
            internal_secret=internal_secret,
            peppers=peppers,
            host=environ.get("PAGODA_GATEWAY_HOST", "127.0.0.1"),
            port=port,
        )


def _peppers(text: str, faults: list[str]) -> Mapping[str, bytes]:
    if not text:
        return {}
    try:
        return keys.parse_peppers(text)
    except ValueError as error:
        faults.append(f"PAGODA_KEY_PEPPERS: {error}.")
        return {}


def _port(text: str, faults: list[str]) -> int:
    if text and not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        faults.append("PAGODA_GATEWAY_PORT must be a port number from 1 to 65535.")
        return 0
    return int(text or 0)
