"""One real generation through the door that traffic will use: what makes a replica READY."""

import time
from pathlib import Path

import httpx
import msgspec

from dataplane.contracts import headers
from dataplane.fleet.plan import Assignment

_CONNECT_TIMEOUT_S = 5.0
_MAX_CAUSE_CHARS = 500


class SmokeError(Exception):
    """The replica did not generate; the sentence says what it did."""


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Completion(msgspec.Struct):
    usage: _Usage


async def generate(socket: Path, assignment: Assignment) -> int:
    """Have the replica behind ``socket`` generate a token, and return the milliseconds that took.

    There is no time limit: the replica's progress is watched.

    Raises:
        SmokeError: the connection broke, the answer is an error, or it holds no token.
    """
    # No tenant and no request id: nobody pays for this one.
    request_headers = {headers.DEPLOYMENT: assignment.deployment_id, headers.VERSION: assignment.version_id}
    body = {"model": assignment.served_name, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    asked_at_s = time.monotonic()
    try:
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        timeout = httpx.Timeout(_CONNECT_TIMEOUT_S, read=None)
        async with httpx.AsyncClient(transport=transport, base_url="http://replica", timeout=timeout) as client:
            answer = await client.post("/v1/completions", json=body, headers=request_headers)
    except httpx.HTTPError as error:
        raise SmokeError(str(error) or type(error).__name__) from error
    if answer.status_code != httpx.codes.OK:
        raise SmokeError(f"status {answer.status_code}: {answer.text[:_MAX_CAUSE_CHARS]}")
    try:
        completion = msgspec.json.decode(answer.content, type=_Completion)
    except msgspec.DecodeError as error:
        raise SmokeError(f"the answer is not a completion: {error}") from error
    if completion.usage.completion_tokens < 1:
        raise SmokeError("the answer holds no token")
    return round((time.monotonic() - asked_at_s) * 1000)
