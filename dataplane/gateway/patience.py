"""How long a request may wait for a replica and what its caller hears meanwhile: by header, else by deployment."""

import re

import msgspec

from dataplane.contracts import headers
from dataplane.contracts.catalog import IdlePolicy
from dataplane.contracts.errors import ApiError, Code
from dataplane.gateway.door import Headers

_SECONDS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,3})?", re.ASCII)


class Patience(msgspec.Struct, frozen=True):
    """``wait_s`` for a replica; ``heartbeats``: begin the stream at once and keep it alive by comments.

    ``shortened``: the caller waits less than the deployment would have it wait.
    """

    wait_s: float
    heartbeats: bool = False
    shortened: bool = False


def of(asked: Headers, policy: IdlePolicy, *, stream: bool, max_wait_s: float) -> Patience:
    """Return what ``asked`` says.

    Raises:
        ApiError: INVALID_PARAMETER naming the header: it says nothing we know, more than ``max_wait_s``, or asks for
            heartbeats of an answer that is no stream.
    """
    usual_s = min(float(policy.cold_wait_s), max_wait_s)
    wait_s = _wait_s(asked, usual_s, max_wait_s)
    return Patience(wait_s, _heartbeats(asked, stream), shortened=wait_s < usual_s)


def _wait_s(asked: Headers, usual_s: float, max_wait_s: float) -> float:
    text = asked.only(headers.COLD_WAIT_S)
    if text is None:
        return usual_s
    if _SECONDS.fullmatch(text) is None or float(text) > max_wait_s:
        raise _refused(headers.COLD_WAIT_S, f"must be a number of seconds from 0 to {max_wait_s:.0f}")
    return float(text)


def _heartbeats(asked: Headers, stream: bool) -> bool:
    text = asked.only(headers.COLD_HEARTBEAT)
    if text not in (None, "0", "1"):
        raise _refused(headers.COLD_HEARTBEAT, "must be 1 or 0")
    if text == "1" and not stream:
        raise _refused(headers.COLD_HEARTBEAT, "needs a stream: set 'stream' to true, or leave the header out")
    return text == "1"


def _refused(name: str, what: str) -> ApiError:
    return ApiError(Code.INVALID_PARAMETER, f"The header '{name}' {what}.", param=name)
