"""What the gateway reads of a request's body: the model's name, and enough to estimate tokens. The rest it passes on.

The body goes to the replica byte for byte, so gateway and replica must read the same thing in it: what two JSON readers
could read differently is refused (:mod:`~dataplane.contracts.strict_json`).
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import msgspec

from dataplane.contracts import strict_json
from dataplane.contracts.errors import ApiError, Code

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_BYTES_PER_TOKEN = 4
_MAX_MODEL_CHARS = 256
_OVERLOAD_RETRY_S = 1.0
REQUEST_BYTES = 16 * 1024
"""What a request counts besides its body: its connection's buffers and its own state."""


class ClientGone(Exception):
    """The caller closed its connection."""


class Intake(msgspec.Struct, frozen=True):
    """A request body and what was read in it.

    ``prompt_tokens`` is an estimate; ``max_tokens`` is None where the caller set none, or set one that only the replica
    can explain to be wrong.
    """

    body: bytes
    model: str
    stream: bool
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


async def read_body(receive: Receive, declared_bytes: int | None, max_bytes: int, hold: Hold) -> bytes:
    """Collect a body of at most ``max_bytes``.

    Args:
        receive: ASGI's.
        declared_bytes: of Content-Length, where given.
        max_bytes: the limit.
        hold: counts what is in memory; see :class:`Bodies`.

    Raises:
        ApiError: BODY_TOO_LARGE, as soon as it is known; or as ``hold`` does.
        ClientGone: before the end.
    """
    if declared_bytes is not None and declared_bytes > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part: bytes = message.get("body", b"")
        size_bytes += len(part)
        if size_bytes > max_bytes:
            raise _too_large(max_bytes)
        hold(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(Code.BODY_TOO_LARGE, f"The request body is over the limit of {max_bytes} bytes.")


def parse(body: bytes) -> Intake:
    """Read the fields that routing and limits need.

    Raises:
        ApiError: INVALID_JSON, or INVALID_PARAMETER naming the field.
    """
    try:
        fields = strict_json.loads_object(body, len(body))
    except strict_json.StrictJsonError as error:
        raise ApiError(Code.INVALID_JSON, f"The request body cannot be read: {error}.") from error
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise ApiError(Code.INVALID_PARAMETER, "'model' must name a model; see GET /v1/models.", param="model")
    if len(model) > _MAX_MODEL_CHARS:
        raise ApiError(Code.INVALID_PARAMETER, f"'model' is longer than {_MAX_MODEL_CHARS} characters.", param="model")
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise ApiError(Code.INVALID_PARAMETER, "'stream' must be true or false.", param="stream")
    return Intake(
        body=body,
        model=model,
        stream=bool(stream),
        max_tokens=_max_tokens(fields),
        prompt_tokens=estimate_prompt_tokens(len(body.decode()), len(body)),
    )


def estimate_prompt_tokens(chars: int, size_bytes: int) -> int:
    """Estimate a prompt's tokens from its body alone.

    Four characters a token, OpenAI's published rule of thumb for English, and one token more for every byte beyond the
    first of a character, since scripts outside ASCII come to about a token a byte. The replica's count settles it.
    """
    return -(-chars // _BYTES_PER_TOKEN) + (size_bytes - chars)


def _max_tokens(fields: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.get(name)
        if type(value) is int and value >= 0:
            return value
    return None
