"""By when sequences must have their first token."""

from collections.abc import Mapping
from heapq import heappop, heappush

from dataplane.engine.sequence import Sequence


class Deadlines:
    """Who must have a token by when: looked at from the first on, so that a step costs the same however many wait.

    What has ended or begun to answer is not searched for: it stays, as a few bytes, until its time has come.
    """

    def __init__(self) -> None:
        self._line: list[tuple[float, int, str]] = []

    def add(self, sequence: Sequence, deadline_s: float) -> None:
        """Note that ``sequence`` must have a token before ``deadline_s``."""
        heappush(self._line, (deadline_s, sequence.arrival, sequence.request_id))

    def overdue(self, sequences: Mapping[str, Sequence], now_s: float) -> list[Sequence]:
        """Return those of ``sequences`` that still have no token at their deadline; each is told once."""
        found = []
        while self._line and self._line[0][0] <= now_s:
            _, arrival, request_id = heappop(self._line)
            sequence = sequences.get(request_id)  # by now perhaps another one of that id
            if sequence is not None and sequence.arrival == arrival and not sequence.num_output_tokens:
                found.append(sequence)
        return found
