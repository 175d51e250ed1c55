"""Calls of functions out of a model's text, as it comes: what is a call, and what is said beside calls."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from dataplane.contracts import strict_json
from dataplane.text.grammar import CallForm

_MAX_CALL_BYTES = 4 * 1024 * 1024


class Call(NamedTuple):
    """A whole call; ``arguments`` is the text of a JSON object."""

    name: str
    arguments: str


class CallReader:
    """Reads one answer. The result depends on its text alone, never on how it was cut into pieces.

    A call is told once it is whole, since only then is it certain to be one: what begins like a call and is none, or
    names no function that was offered, is text. Space around calls is not.

    Args:
        form: in which the model calls.
        names: of the functions that it may call.
    """

    def __init__(self, form: CallForm, names: Iterable[str]) -> None:
        self._form = form
        self._names = frozenset(names)
        self._held = ""
        self._in_call = False
        self._is_after_call = False
        self._is_text = False
        self._searched = 0

    def push(self, text: str, *, last: bool = False) -> list[str | Call]:
        """Take the next piece of text; return what is certain now. ``last``: no more will come."""
        self._held += text
        said = self._said_around_tags(last=last) if self._form.trigger else self._said_as_a_whole(last=last)
        return [part for part in said if part]

    def _said_as_a_whole(self, *, last: bool) -> list[str | Call]:
        begun = self._held.lstrip()
        self._is_text = self._is_text or bool(begun and not begun.startswith("{"))
        if not (self._is_text or last):
            return []
        held, self._held = self._held, ""
        call = None if self._is_text else self._call(held)
        return [held if call is None else call]

    def _said_around_tags(self, *, last: bool) -> list[str | Call]:
        said: list[str | Call] = []
        while True:
            part = self._next_in_call() if self._in_call else self._next_outside()
            if part is None:
                break
            said.append(part)
        if last:
            said.append(self._held)
            self._held = ""
        return said

    def _next_outside(self) -> str | None:
        """Return text that is certain, up to the next call; None where nothing more is."""
        if self._is_after_call:
            self._held = self._held.lstrip()
            self._is_after_call = not self._held
        held, trigger = self._held, self._form.trigger
        at = held.find(trigger)
        if at >= 0:
            self._held, self._in_call = held[at:], True
            return held[:at].rstrip()
        begun = next(length for length in range(len(trigger) - 1, -1, -1) if held.endswith(trigger[:length]))
        certain = held[: len(held) - begun].rstrip()
        self._held = held[len(certain) :]
        return certain or None

    def _next_in_call(self) -> Call | None:
        """Return the call, None where it is not whole. What seems to be its end may stand in one of its texts."""
        tag = self._form.after.strip()
        while (end := self._held.find(tag, self._searched)) >= 0:
            call = self._call(self._held[len(self._form.trigger) : end])
            self._searched = end + len(tag)
            if call is not None:
                self._held, self._searched = self._held[self._searched :], 0
                self._in_call, self._is_after_call = False, True
                return call
        return None

    def _call(self, text: str) -> Call | None:
        try:
            value = strict_json.loads_object(text.encode(), _MAX_CALL_BYTES)
        except strict_json.StrictJsonError:
            return None
        name, arguments = value.get("name"), value.get(self._form.arguments_key)
        if name not in self._names or not isinstance(arguments, dict):
            return None
        return Call(name, msgspec.json.encode(arguments).decode())
