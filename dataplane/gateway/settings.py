"""What a gateway needs from its environment, and the bounds it keeps."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from dataplane.contracts import keys
from dataplane.environment import Environment


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
    max_queue_wait_s: float = 240.0
    """The longest that a request may wait for its first token in a replica: less than what makes that one seem lost."""
    drain_s: float = 60.0
    catalog_poll_s: float = 0.5
    lease_ms: int = 10_000
    lease_renewal_s: float = 2.0
    redis_timeout_s: float = 1.0
    max_spool_bytes: int = 256 * 1024 * 1024


def read(environ: Mapping[str, str]) -> Settings:
    """Read and check the settings.

    Raises:
        SettingsError: variables are missing or wrong; the message names each.
    """
    found = Environment(environ)
    settings = Settings(
        home=Path(found.required("PAGODA_HOME")).absolute(),
        redis_url=found.url("REDIS_URL", "redis", "rediss", "unix"),
        control_url=found.url("PAGODA_CONTROL_URL", "http", "https"),
        fleet_url=found.url("PAGODA_FLEET_URL", "http", "https"),
        internal_secret=found.required("PAGODA_INTERNAL_SECRET"),
        peppers=_peppers(found),
        host=found.optional("PAGODA_GATEWAY_HOST", "127.0.0.1"),
        port=found.whole("PAGODA_GATEWAY_PORT", 1, 65535),
    )
    found.check()
    return settings


def _peppers(found: Environment) -> Mapping[str, bytes]:
    text = found.required("PAGODA_KEY_PEPPERS")
    try:
        return keys.parse_peppers(text) if text else {}
    except ValueError as error:
        found.fault(f"PAGODA_KEY_PEPPERS: {error}.")
        return {}
