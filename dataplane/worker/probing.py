"""Probes on a replica (:mod:`dataplane.contracts.probes`): let in while little else runs, and ended when more comes."""

import contextlib
from collections.abc import Callable, Iterator

from dataplane.contracts.errors import ApiError, Code


class Probes:
    """The probes that run now.

    Args:
        end: ends a sequence of the engine by its id, with an error for its caller; False where there is none.
    """

    def __init__(self, end: Callable[[str, ApiError], bool]) -> None:
        self._end = end
        self._running: set[str] = set()

    @contextlib.contextmanager
    def running(self, sequence_id: str, *, busy: bool) -> Iterator[None]:
        """Hold a probe's place.

        Raises:
            ApiError: the replica is ``busy``.
        """
        if busy:
            raise _given_up()
        self._running.add(sequence_id)
        try:
            yield
        finally:
            self._running.discard(sequence_id)

    def check(self, sequence_id: str) -> None:
        """Make sure that a probe on its way to the engine was not given up meanwhile: the engine may be asleep by now.

        Raises:
            ApiError: it was.
        """
        if sequence_id not in self._running:
            raise _given_up()

    def give_up(self) -> None:
        """End them all."""
        given_up, self._running = self._running, set()
        for sequence_id in given_up:
            self._end(sequence_id, _given_up())


def _given_up() -> ApiError:
    return ApiError(Code.OVERLOADED, "the replica has work to do, so it is not probed now", retry_after_s=1.0)
