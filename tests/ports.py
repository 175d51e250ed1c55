"""Ports for the servers that tests start; a module of its own, since folders with a conftest hide the one above."""

import socket


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
