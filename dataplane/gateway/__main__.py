"""``python -m dataplane.gateway``: serve until SIGTERM. Configured by the environment alone."""

import os
import sys

import uvloop

from dataplane import logs
from dataplane.environment import SettingsError
from dataplane.gateway import settings
from dataplane.gateway.server import serve
from dataplane.http_server.server import ListenError


def main() -> int:
    """Run a gateway; return the exit status."""
    logs.configure()
    try:
        uvloop.run(serve(settings.read(os.environ)))
    except (SettingsError, ListenError) as error:
        sys.stderr.write(f"The gateway cannot start: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
