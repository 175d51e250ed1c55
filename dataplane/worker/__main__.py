"""``python -m dataplane.worker``: see :mod:`dataplane.worker`."""

import asyncio
import sys

import uvloop

from dataplane import logs
from dataplane.http_server.server import ListenError
from dataplane.worker.server import serve
from dataplane.worker.settings import SettingsError, parse


def main() -> int:
    """Run the worker and return its exit status."""
    logs.configure()
    try:
        settings = parse(sys.argv[1:])
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            status, cause = runner.run(serve(settings))
    except (SettingsError, ListenError) as error:
        print(f"dataplane.worker: {error}", file=sys.stderr)
        return 2
    if status:
        print(f"dataplane.worker: {cause}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
