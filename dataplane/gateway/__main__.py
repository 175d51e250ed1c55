"""``python -m dataplane.gateway``: serve until SIGTERM. Configured by the environment alone."""

import os
import sys

import uvloop

from dataplane import logs
from dataplane.gateway.app import Gateway
from dataplane.gateway.server import Server
from dataplane.gateway.settings import Settings, SettingsError


async def _serve(settings: Settings) -> int:
    server = Server(Gateway(settings))
    await server.serve()
    return 0 if server.started else 1


def main() -> int:
    """Run a gateway; return the exit status."""
    logs.configure()
    try:
        settings = Settings.from_environ(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"The gateway cannot start: {error}\n")
        return 2
    return uvloop.run(_serve(settings))


if __name__ == "__main__":
    sys.exit(main())
