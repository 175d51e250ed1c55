"""Settings from the environment, for every process of the data plane: a start is refused with all its reasons."""

from collections.abc import Mapping
from urllib.parse import urlsplit


class SettingsError(ValueError):
    """The environment is not one to start in; the message has one sentence per fault."""


class Environment:
    """Reads variables; of one that is missing or wrong it keeps a sentence, and returns something of its type.

    :meth:`check` is for the end: what was read counts only when it raises nothing.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._faults: list[str] = []

    def fault(self, sentence: str) -> None:
        """Keep one more reason against the start."""
        self._faults.append(sentence)

    def check(self) -> None:
        """End the reading.

        Raises:
            SettingsError: something was missing or wrong.
        """
        if self._faults:
            raise SettingsError(" ".join(self._faults))

    def optional(self, name: str, default: str = "") -> str:
        """Return a variable, or ``default`` where it is not set or blank."""
        return self._environ.get(name, "").strip() or default

    def required(self, name: str) -> str:
        """Return a variable that there must be."""
        value = self.optional(name)
        if not value:
            self.fault(f"{name} is not set.")
        return value

    def url(self, name: str, *schemes: str) -> str:
        """Return a required URL of one of ``schemes``."""
        value = self.required(name)
        if value and urlsplit(value).scheme not in schemes:
            self.fault(f"{name} must be a URL that starts with one of {', '.join(f'{s}://' for s in schemes)}.")
        return value

    def secret(self, name: str, least_bytes: int) -> bytes:
        """Return a required secret, written in hexadecimal."""
        text = self.required(name)
        try:
            secret = bytes.fromhex(text)
        except ValueError:
            self.fault(f"{name} must be written in hexadecimal.")
            return b""
        if text and len(secret) < least_bytes:
            self.fault(f"{name} must have {least_bytes} bytes ({2 * least_bytes} hexadecimal digits) or more.")
        return secret

    def number(self, name: str, least: float, most: float, default: float) -> float:
        """Return a number from ``least`` to ``most``."""
        text = self.optional(name, str(default))
        try:
            value = float(text)
        except ValueError:
            self.fault(f"{name} must be a number, not {text!r}.")
            return default
        if not least <= value <= most:
            self.fault(f"{name} must be between {least:g} and {most:g}, not {text}.")
        return value

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        """Return a whole number from ``least`` to ``most``, required where there is no ``default``."""
        text = self.required(name) if default is None else self.optional(name, str(default))
        if not text:
            return least
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            self.fault(f"{name} must be a whole number from {least} to {most}, not {text!r}.")
            return least
        return int(text)
