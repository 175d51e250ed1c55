"""Named points where a test may crash a process. Nothing is armed unless the environment says so.

``PAGODA_FAILPOINTS="worker.admitted=kill,worker.progress=kill@3"`` kills the process at the first hit of one point and
at the third of the other. An action is ``kill`` (SIGKILL, as a crash would), ``raise``, or ``stop`` (SIGSTOP, a hang).
"""

import os
import signal
from typing import NamedTuple

ENVIRONMENT = "PAGODA_FAILPOINTS"
_ACTIONS = ("kill", "raise", "stop")


class FailpointError(RuntimeError):
    """What an armed point with the action ``raise`` raises."""


class _Trigger(NamedTuple):
    action: str
    at_hit: int


def parse(text: str) -> dict[str, _Trigger]:
    """Read the environment's text.

    Raises:
        ValueError: not of the form ``name=action`` or ``name=action@hit``, separated by commas.
    """
    armed: dict[str, _Trigger] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, rest = part.partition("=")
        action, _, hit = rest.partition("@")
        if not name or action not in _ACTIONS or not (hit or "1").isdecimal():
            raise ValueError(f"{ENVIRONMENT}: {part!r} is not name=action or name=action@hit with {_ACTIONS}")
        armed[name] = _Trigger(action, int(hit or "1"))
    return armed


_armed = parse(os.environ.get(ENVIRONMENT, ""))
_hits: dict[str, int] = {}


def hit(name: str) -> None:
    """Pass the point ``name``.

    Raises:
        FailpointError: it is armed with ``raise``.
    """
    trigger = _armed.get(name)
    if trigger is None:
        return
    _hits[name] = _hits.get(name, 0) + 1
    if _hits[name] != trigger.at_hit:
        return
    if trigger.action == "raise":
        raise FailpointError(f"failpoint {name}")
    os.kill(os.getpid(), signal.SIGKILL if trigger.action == "kill" else signal.SIGSTOP)
