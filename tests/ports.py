"""Ports for the servers that tests start; a module of its own, since folders with a conftest hide the one above."""

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Return different TCP ports of 127.0.0.1 that were free a moment ago."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]
