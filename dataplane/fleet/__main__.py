"""``python -m dataplane.fleet``: the fleet of this node, set up by its environment.

It needs PAGODA_HOME, REDIS_URL, PAGODA_CONTROL_URL, PAGODA_INTERNAL_SECRET, PAGODA_CACHE_SALT_SECRET (hexadecimal) and
PAGODA_FLEET_PORT. It may be told PAGODA_RUN_DIR (for sockets; ``run`` in its home), PAGODA_WARM_IDLE_FLOOR (processes,
1), PAGODA_MAX_PROCESSES (16), PAGODA_ASLEEP_MEMORY_MB (for sleeping replicas; a quarter of the memory), PAGODA_DRAIN_S
(30) and PAGODA_HANG_S (8). PAGODA_STORE_URL is where versions come from, ``file:///folder`` (``store`` in its home) or
``s3://bucket/prefix`` with PAGODA_S3_ENDPOINT and AWS_ACCESS_KEY_ID and its like, which workers never see.
OMP_NUM_THREADS is handed on to them. PAGODA_PROBE_SHARE is the part of the time in which replicas that several tenants
share are probed (0.02; 0 is never). SIGTERM drains every replica, then it ends.
"""

import asyncio
import os
import sys

from dataplane import logs
from dataplane.environment import SettingsError
from dataplane.fleet import settings as fleet_settings
from dataplane.fleet.backends.local import LocalBackend
from dataplane.fleet.replica import Patience
from dataplane.fleet.server import serve
from dataplane.http_server.server import ListenError


def main() -> int:
    """Run the fleet; return the exit status."""
    logs.configure()
    try:
        settings = fleet_settings.read(os.environ)
        backend = LocalBackend(
            home=settings.home, control_url=settings.control_url, internal_secret=settings.internal_secret
        )
        asyncio.run(serve(settings, backend, Patience(drain_s=settings.drain_s, hang_s=settings.hang_s)))
    except (SettingsError, ListenError) as error:
        sys.stderr.write(f"fleet: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
