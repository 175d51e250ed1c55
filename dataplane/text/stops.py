"""Stop strings over a stream of text, whatever the borders of its pieces."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to the stop string that is complete first, holding back what may still become one.

    Of stops complete at the same character the longest counts, so the text is cut where that one begins. The result
    depends on the text alone, never on how it was cut into pieces. One automaton for each stop, linear in the text
    (Knuth, Morris and Pratt, 1977).

    Raises:
        ValueError: an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)
        self._held = ""
        self._hit = False

    def push(self, text: str, *, last: bool = False) -> tuple[str, bool]:
        """Take the next piece of text.

        Args:
            text: the piece; after a hit it is dropped.
            last: no more text will come, so what was held back and is not a stop is let through.

        Returns:
            The text that is safe to emit now, and whether a stop was hit (then nothing more will come).
        """
        if self._hit:
            return "", True
        held = self._held + text
        for index, character in enumerate(text, start=len(self._held) + 1):
            longest_stop = self._advance(character)
            if longest_stop:
                self._hit, self._held = True, ""
                return held[: index - longest_stop], True
        safe = len(held) - (0 if last else max(self._matched, default=0))
        self._held = held[safe:]
        return held[:safe], False

    def _advance(self, character: str) -> int:
        """Feed one character to every automaton; return the length of the longest stop it completes, or 0."""
        longest_stop = 0
        for number, (stop, borders) in enumerate(self._stops):
            matched = self._matched[number]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            matched += stop[matched] == character
            self._matched[number] = matched
            if matched == len(stop):
                longest_stop = max(longest_stop, matched)
        return longest_stop


def _borders(stop: str) -> list[int]:
    """For each prefix of ``stop``, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    matched = 0
    for index in range(1, len(stop)):
        while matched and stop[matched] != stop[index]:
            matched = borders[matched - 1]
        matched += stop[matched] == stop[index]
        borders[index] = matched
    return borders
