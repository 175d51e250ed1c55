"""The door every call of the API goes through: the request headers that are read, and the caller they prove."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from dataplane.contracts.errors import ApiError, Code
from dataplane.gateway import auth
from dataplane.gateway.auth import Caller
from dataplane.gateway.snapshot import Snapshot

_STARTING_RETRY_S = 1.0


class Headers:
    """The headers of a request, by name in lower case; the last wins where one is repeated."""

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        self._raw: dict[bytes, bytes] = dict(scope["headers"])
        self._names = Counter(name for name, _ in scope["headers"])

    def only(self, name: str) -> str | None:
        """Return the text of a header that two readers must not read differently.

        Raises:
            ApiError: INVALID_REQUEST: it is there twice.
        """
        if self._names[name.encode()] > 1:
            raise ApiError(Code.INVALID_REQUEST, f"The header '{name}' is there twice.", param=name)
        return self.get(name)

    def get(self, name: str) -> str | None:
        """Return a header's text."""
        value = self._raw.get(name.encode())
        return None if value is None else value.decode("latin-1")


class Door:
    """Lets callers in.

    Args:
        peppers: by id, for the digests of keys.
        snapshot: returns the catalog in force.
    """

    def __init__(self, peppers: Mapping[str, bytes], snapshot: Callable[[], Snapshot]) -> None:
        self._peppers = peppers
        self._snapshot = snapshot

    def enter(self, headers: Headers) -> tuple[Snapshot, Caller]:
        """Return the caller that ``headers`` prove, and the snapshot that knows it.

        Raises:
            ApiError: as :func:`dataplane.gateway.auth.authenticate`; INVALID_REQUEST where two keys are shown;
                OVERLOADED before there is any catalog, when nobody can be told from anybody.
        """
        token = auth.bearer(headers.only("authorization"))
        snapshot = self._snapshot()
        if snapshot.catalog.number == 0:
            raise ApiError(
                Code.OVERLOADED, "This gateway is starting and knows no keys yet.", retry_after_s=_STARTING_RETRY_S
            )
        return snapshot, auth.authenticate(token, snapshot.catalog, self._peppers, wall_ms())


def wall_ms() -> int:
    """Return the wall clock in ms, which expiry dates are in."""
    return time.time_ns() // 1_000_000
