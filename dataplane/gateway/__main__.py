"""``python -m dataplane.gateway``: serve until SIGTERM. Configured by the environment alone."""

import logging
import os
import sys

import structlog
import uvloop

from dataplane.gateway.app import Gateway
from dataplane.gateway.server import Server
from dataplane.gateway.settings import Settings, SettingsError


def _log_json() -> None:
    """Write one JSON line per event to standard output, the libraries' warnings among them."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


async def _serve(settings: Settings) -> int:
    server = Server(Gateway(settings))
    await server.serve()
    return 0 if server.started else 1


def main() -> int:
    """Run a gateway; return the exit status."""
    _log_json()
    try:
        settings = Settings.from_environ(os.environ)
    except SettingsError as error:
        sys.stderr.write(f"The gateway cannot start: {error}\n")
        return 2
    return uvloop.run(_serve(settings))


if __name__ == "__main__":
    sys.exit(main())
