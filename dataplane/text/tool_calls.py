"""Calls of functions out of a model's text, as it comes: what is a call, and what is said beside calls."""

import re
from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from dataplane.contracts import strict_json
from dataplane.text.grammar import CallForm

_MAX_CALL_BYTES = 4 * 1024 * 1024


class CallPart(NamedTuple):
    """A part of a call. The first has the function's ``name``, which is empty in the others; ``arguments`` add up."""

    name: str
    arguments: str = ""


class _At(Enum):
    """Where in an answer its reader is."""

    TEXT = auto()
    OPENED = auto()
    """Behind what begins a call, which may be none yet."""
    ARGUMENTS = auto()
    CLOSING = auto()
    """Behind the arguments, where the rest of the call's form stands."""


class _Arguments:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = False
        self._is_escaped = False

    def end(self, text: str) -> int | None:
        """Return the place behind the object's last character in the next piece; None where it is not there."""
        for place, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_text:
                self._is_escaped = character == "\\"
                self._in_text = character != '"'
            elif character == '"':
                self._in_text = True
            else:
                self._depth += (character in "{[") - (character in "}]")
                if self._depth == 0:
                    return place + 1
        return None


class CallReader:
    """Reads one answer. What its parts add up to depends on its text alone, never on how it was cut into pieces.

    A call is certain once it names a function that was offered and its arguments begin; from there on they are told as
    they come and as they are written, whole or cut short. One that names its function behind its arguments is told once
    it is whole. What begins like a call and is none is text. Space around calls is not.

    Args:
        form: in which the model calls.
        names: of the functions that it may call.
    """

    def __init__(self, form: CallForm, names: Iterable[str]) -> None:
        self._form = form
        self._names = frozenset(names)
        offered = "|".join(map(re.escape, self._names))
        self._opening = re.compile(
            rf'\s*\{{\s*"name"\s*:\s*"({offered})"\s*,\s*"{re.escape(form.arguments_key)}"\s*:\s*(?=\{{)'
        )
        self._tag = form.after.strip()
        self._held = ""
        self._at = _At.TEXT if form.trigger else _At.OPENED
        self._is_after_call = False
        self._searched = 0
        self._arguments = _Arguments()
        self._expected: list[str] = []

    def push(self, text: str, *, last: bool = False) -> list[str | CallPart]:
        """Take the next piece of text; return what is certain now. ``last``: no more will come."""
        self._held += text
        said: list[str | CallPart] = []
        while (part := self._next()) is not None:
            said.append(part)
        if last:
            whole = None if self._form.trigger or self._at is not _At.OPENED else self._whole_call(self._held)
            said.append(self._held if whole is None else whole)
            self._held = ""
        return [part for part in said if part]

    def _next(self) -> str | CallPart | None:
        """Return what is certain next; None where nothing is."""
        match self._at:
            case _At.TEXT:
                return self._next_text()
            case _At.OPENED:
                return self._next_opened()
            case _At.ARGUMENTS:
                return self._next_arguments()
            case _At.CLOSING:
                return self._close()

    def _next_text(self) -> str | None:
        """Return text up to the next call, but for space that may stand before one."""
        if self._is_after_call:
            self._held = self._held.lstrip()
            self._is_after_call = not self._held
        held, trigger = self._held, self._form.trigger
        if not trigger:  # a call is all of an answer, and this one is none, or is over
            self._held = ""
            return held or None
        at = held.find(trigger)
        if at >= 0:
            self._held, self._at, self._searched = held[at:], _At.OPENED, len(trigger)
            return held[:at].rstrip()
        begun = next(length for length in range(len(trigger) - 1, -1, -1) if held.endswith(trigger[:length]))
        certain = held[: len(held) - begun].rstrip()
        self._held = held[len(certain) :]
        return certain or None

    def _next_opened(self) -> str | CallPart | None:
        """Return the beginning of a call, or all of it."""
        begun = len(self._form.trigger)
        opening = self._opening.match(self._held, begun)
        if opening is not None:
            self._held, self._at, self._arguments = self._held[opening.end() :], _At.ARGUMENTS, _Arguments()
            return CallPart(opening[1])
        if not self._form.trigger:
            if self._held.lstrip()[:1] in ("", "{"):
                return None
            self._at = _At.TEXT
            return ""
        while (end := self._held.find(self._tag, self._searched)) >= 0:
            # What seems to be its end may stand in one of its texts.
            call = self._whole_call(self._held[begun:end])
            self._searched = end + len(self._tag)
            if call is not None:
                self._held, self._at, self._is_after_call = self._held[self._searched :], _At.TEXT, True
                return call
        return None

    def _next_arguments(self) -> CallPart | None:
        end = self._arguments.end(self._held)
        more, self._held = self._held[:end], "" if end is None else self._held[end:]
        if end is not None:
            self._at, self._expected = _At.CLOSING, ["}", self._tag] if self._tag else ["}"]
        return CallPart("", more) if more else None

    def _close(self) -> str | None:
        """Leave the call, and leave out what closes it as far as that is there."""
        while self._expected:
            self._held = self._held.lstrip()
            if len(self._held) < len(self._expected[0]) and self._expected[0].startswith(self._held):
                return None  # it may still come
            self._held = self._held.removeprefix(self._expected.pop(0))
        self._at, self._is_after_call = _At.TEXT, True
        return ""

    def _whole_call(self, text: str) -> CallPart | None:
        try:
            value = strict_json.loads_object(text.encode(), _MAX_CALL_BYTES)
        except strict_json.StrictJsonError:
            return None
        name, arguments = value.get("name"), value.get(self._form.arguments_key)
        if name not in self._names or not isinstance(arguments, dict):
            return None
        return CallPart(name, msgspec.json.encode(arguments).decode())
