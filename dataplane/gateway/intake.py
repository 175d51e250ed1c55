"""What the gateway reads of a request's body: the model's name, and enough to estimate tokens. The rest it passes on.

The body goes to the replica byte for byte, and the replica refuses what two JSON readers could read differently, such
as a repeated key, whatever the gateway made of it. To look for that here too would hold up all other requests for a
second where a body of 4 MiB has a million values; passing over values takes a twentieth of the time.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.sampling import MAX_CHOICES

_BYTES_PER_TOKEN = 4
_MAX_MODEL_CHARS = 256
_MAX_FIELD_BYTES = 2 + 6 * _MAX_MODEL_CHARS
"""Of the text of a field that is read; a character can be written with six bytes."""
_WRONG: Final = object()
_OVERLOAD_RETRY_S = 1.0
REQUEST_BYTES = 16 * 1024
"""What a request counts besides its body: its connection's buffers and its own state."""


class Intake(msgspec.Struct, frozen=True):
    """A request body and what was read in it.

    ``prompt_tokens`` is an estimate; ``max_tokens`` is None where the caller set none, or set one that only the replica
    can explain to be wrong; such an ``n`` is 1.
    """

    body: bytes
    model: str
    stream: bool
    n: int
    max_tokens: int | None
    prompt_tokens: int


Hold = Callable[[int], None]


class Bodies:
    """What the requests of this process hold in memory, counted as it arrives: bodies that never end count too.

    Args:
        max_bytes: of all together.
        max_tenant_bytes: of one tenant, which can so not fill the memory that others need.
    """

    def __init__(self, max_bytes: int, max_tenant_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._by_tenant: Counter[str] = Counter()
        self.held_bytes = 0

    @contextmanager
    def holding(self, tenant_id: str) -> Iterator[Hold]:
        """Yield a function that counts bytes of one request, until the block ends.

        Raises:
            ApiError: from that function, and for what a request holds without a body: CONCURRENT_REQUESTS when the
                tenant has its share, OVERLOADED when all is taken.
        """
        mine = 0

        def hold(size_bytes: int) -> None:
            nonlocal mine
            if self._by_tenant[tenant_id] + size_bytes > self._max_tenant_bytes:
                raise ApiError(
                    Code.CONCURRENT_REQUESTS,
                    f"This tenant's requests hold {self._by_tenant[tenant_id]} bytes, of at most "
                    f"{self._max_tenant_bytes}. Wait for some to end.",
                    retry_after_s=_OVERLOAD_RETRY_S,
                )
            if self.held_bytes + size_bytes > self._max_bytes:
                raise ApiError(
                    Code.OVERLOADED, "The service is at its capacity. Try again.", retry_after_s=_OVERLOAD_RETRY_S
                )
            mine += size_bytes
            self.held_bytes += size_bytes
            self._by_tenant[tenant_id] += size_bytes

        try:
            hold(REQUEST_BYTES)
            yield hold
        finally:
            self.held_bytes -= mine
            self._by_tenant[tenant_id] -= mine
            if not self._by_tenant[tenant_id]:
                del self._by_tenant[tenant_id]


class _Fields(msgspec.Struct):
    """The fields that are read, as text of JSON; the others are passed over without making anything of them."""

    model: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: msgspec.Raw = msgspec.Raw()


_FIELDS = msgspec.json.Decoder(_Fields)


def parse(body: bytes) -> Intake:
    """Read the fields that routing and limits need.

    Raises:
        ApiError: INVALID_JSON, or INVALID_PARAMETER naming the field.
    """
    try:
        fields = _FIELDS.decode(body)
        chars = len(body.decode())
        model, stream, n = _value(fields.model), _value(fields.stream), _value(fields.n)
        max_tokens = _max_tokens(fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(Code.INVALID_JSON, f"The request body is not a JSON object: {error}.") from error
    if not isinstance(model, str) or not 0 < len(model) <= _MAX_MODEL_CHARS:
        raise ApiError(
            Code.INVALID_PARAMETER,
            f"'model' must name a model, in at most {_MAX_MODEL_CHARS} characters; see GET /v1/models.",
            param="model",
        )
    if stream is not None and not isinstance(stream, bool):
        raise ApiError(Code.INVALID_PARAMETER, "'stream' must be true or false.", param="stream")
    return Intake(
        body=body,
        model=model,
        stream=bool(stream),
        n=n if type(n) is int and 1 <= n <= MAX_CHOICES else 1,
        max_tokens=max_tokens,
        prompt_tokens=estimate_prompt_tokens(chars, len(body)),
    )


def estimate_prompt_tokens(chars: int, size_bytes: int) -> int:
    """Estimate a prompt's tokens from its body alone.

    Four characters a token, OpenAI's published rule of thumb for English, and one token more for every byte beyond the
    first of a character, since scripts outside ASCII come to about a token a byte. The replica's count settles it.
    """
    return -(-chars // _BYTES_PER_TOKEN) + (size_bytes - chars)


def _max_tokens(fields: _Fields) -> int | None:
    for raw in (fields.max_completion_tokens, fields.max_tokens):
        value = _value(raw)
        if type(value) is int and value >= 0:
            return value
    return None


def _value(raw: msgspec.Raw) -> object:
    """Return the value of a field: None where it is not there, :data:`_WRONG` where it is too long to be right."""
    text = bytes(raw)
    if not text:
        return None
    return msgspec.json.decode(text) if len(text) <= _MAX_FIELD_BYTES else _WRONG
