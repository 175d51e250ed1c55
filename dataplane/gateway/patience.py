"""How long a request may wait, for a replica and in its queue, and what its caller hears meanwhile.

By header; else by deployment, and in the queue as long as the gateway lets everybody.
"""

import re

import msgspec

from dataplane.contracts import headers
from dataplane.contracts.catalog import IdlePolicy
from dataplane.contracts.errors import ApiError, Code
from dataplane.gateway.door import Headers

_SECONDS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,3})?", re.ASCII)


class Patience(msgspec.Struct, frozen=True):
    """``wait_s`` for a replica; ``heartbeats``: begin the stream at once and keep it alive by comments.

    ``shortened``: the caller waits less than the deployment would have it wait. ``queue_wait_s``: for its first token
    from the replica, where the caller said so.
    """

    wait_s: float
    heartbeats: bool = False
    shortened: bool = False
    queue_wait_s: float | None = None


def of(asked: Headers, policy: IdlePolicy, *, stream: bool, max_wait_s: float, max_queue_wait_s: float) -> Patience:
    """Return what ``asked`` says.

    Raises:
        ApiError: INVALID_PARAMETER naming the header: it says nothing we know, more than the most that may be asked
            for, or asks for heartbeats of an answer that is no stream.
    """
    usual_s = min(float(policy.cold_wait_s), max_wait_s)
    asked_s = _seconds(asked, headers.COLD_WAIT_S, max_wait_s)
    wait_s = usual_s if asked_s is None else asked_s
    queue_wait_s = _seconds(asked, headers.QUEUE_WAIT_S, max_queue_wait_s)
    return Patience(wait_s, _heartbeats(asked, stream), shortened=wait_s < usual_s, queue_wait_s=queue_wait_s)


def _seconds(asked: Headers, name: str, most_s: float) -> float | None:
    text = asked.only(name)
    if text is None:
        return None
    if _SECONDS.fullmatch(text) is None or float(text) > most_s:
        raise _refused(name, f"must be a number of seconds from 0 to {most_s:.0f}")
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
