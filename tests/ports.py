"""Ports for the servers that tests start; a module of its own, since folders with a conftest hide the one above."""

import random
import socket
from contextlib import ExitStack, suppress

_RANGE = range(15_000, 30_000)
"""Below those that Linux gives to whoever names none: one of its connections could have the port before its server."""


def free_ports(count: int) -> list[int]:
    """Return different TCP ports of 127.0.0.1 that were free a moment ago."""
    draw, found = random.SystemRandom(), set[int]()
    with ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            with suppress(OSError):  # taken
                probe.bind(("127.0.0.1", port := draw.choice(_RANGE)))
                found.add(port)
    return list(found)


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]
