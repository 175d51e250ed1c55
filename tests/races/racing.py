"""Calls that start together, each on a connection of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from tenants.errors import Conflict, DomainError, Invalid, NotFound

CONNECTIONS = 40
"""The server of the tests takes a hundred; who finds all taken waits for the next that is free."""
MANY = [20, pytest.param(200, marks=pytest.mark.slow)]


def at_once(
    *calls: Callable[[], object], refusals: tuple[type[DomainError], ...] = (Conflict, Invalid, NotFound)
) -> list[object]:
    """Run ``calls`` in threads that start together; return what they returned, or which of ``refusals`` they met."""
    threads = min(len(calls), CONNECTIONS)
    barrier, first = threading.Barrier(threads), threading.local()

    def run(call: Callable[[], object]) -> object:
        try:
            if not hasattr(first, "over"):
                connection.ensure_connection()
                barrier.wait(timeout=30)
                first.over = True
            return call()
        except refusals as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, calls))
