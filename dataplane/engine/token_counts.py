"""How often a sequence has had each token, kept as it grows, in the form that penalties are computed from."""

from array import array
from collections.abc import Iterable


class TokenCounts:
    """The distinct tokens of a sequence and how often each was put out.

    Two arrays side by side, so that a runner reads them without a copy and without a loop over the vocabulary, and a
    step costs no more the longer the output is. While a runner reads them they cannot grow.

    Attributes:
        token_ids: int64, each once; those of the prompt first.
        counts: float32, beside each how often it is in the output; 0 for one that only the prompt has.

    Args:
        prompt: tokens that count as seen and not as output.
    """

    __slots__ = ("_places", "counts", "token_ids")

    def __init__(self, prompt: Iterable[int] = ()) -> None:
        self._places = {token_id: place for place, token_id in enumerate(dict.fromkeys(prompt))}
        self.token_ids = array("q", self._places)
        self.counts = array("f", bytes(4 * len(self._places)))

    def add(self, token_id: int) -> None:
        """Count a token of the output."""
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self.token_ids):
            self.token_ids.append(token_id)
            self.counts.append(0.0)
        self.counts[place] += 1
