"""Padding of stream events: what their sizes on the wire tell of the text is made coarse.

Who watches an encrypted connection sees how large each event is, and of the lengths of its tokens much of an answer can
be guessed. So every event carries noise, in the field that OpenAI's API has for it.
"""

import secrets

BUCKET_BYTES = 64
_BEFORE, _BEHIND = b',"obfuscation":"', b'"'
_FIELD_BYTES = len(_BEFORE) + len(_BEHIND)
_MAX_NOISE_BYTES = 2 * (BUCKET_BYTES - 1)
_NOISE = secrets.token_urlsafe(48 * 1024).encode()
"""Twice as much as deflate looks back: where something compresses on the way, one letter repeated would vanish."""


class Padding:
    """What brings the events of one stream to multiples of :data:`BUCKET_BYTES`.

    A bucket ends where an event without text does. So texts of 1 to 64 bytes are all in the next one, however long the
    model's name is that stands in each event.

    Args:
        bare_bytes: size of an event without text and without this field.
    """

    def __init__(self, bare_bytes: int) -> None:
        self._least_bytes = -(bare_bytes + _FIELD_BYTES) % BUCKET_BYTES
        self._at = secrets.randbelow(len(_NOISE))

    def field(self, size_bytes: int) -> bytes:
        """Return the field for an event that has ``size_bytes`` without it, to stand last in its object."""
        least_bytes = self._least_bytes
        width = least_bytes + -(size_bytes + _FIELD_BYTES + least_bytes) % BUCKET_BYTES
        self._at = (self._at + width) % (len(_NOISE) - _MAX_NOISE_BYTES)
        return _BEFORE + _NOISE[self._at : self._at + width] + _BEHIND
