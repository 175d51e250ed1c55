"""Named points where a test may make a process or a version fail. Nothing is armed unless the environment says so.

``PAGODA_FAILPOINTS="worker.admitted=kill, worker.progress=kill@3"`` arms points in every process that has it.
``PAGODA_FAILPOINTS_FILE`` names a file whose lines arm points where one version is attached, and only there::

    ver_...: engine.step=delay:80@3+
    ver_...: engine.row=raise%20, engine.logits=truncate:3@2+

The actions are ``kill`` (SIGKILL, as a crash would), ``stop`` (SIGSTOP, a hang), ``raise`` and ``delay:MS``; and, at a
point that hands its values over, ``nan`` and ``truncate:TOKENS``. A point acts at its first hit, with ``@3`` at its
third, with ``@3+`` at the third and all that follow, with ``%20`` at every twentieth.

In a replica ``engine.step`` is hit by each step, ``engine.row`` and ``engine.logits`` by each request, once.
"""

import os
import re
import signal
import time
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

ENVIRONMENT = "PAGODA_FAILPOINTS"
FILE_ENVIRONMENT = "PAGODA_FAILPOINTS_FILE"

_FORM = re.compile(
    r"(?P<name>[a-z0-9_.]+)=(?P<action>[a-z]+)(?::(?P<amount>\d+))?(?:@(?P<hit>[1-9]\d*)(?P<on>\+)?|%(?P<every>[1-9]\d*))?"
)


class Action(StrEnum):
    """What happens at a point."""

    KILL = "kill"
    STOP = "stop"
    RAISE = "raise"
    DELAY = "delay"
    NAN = "nan"
    TRUNCATE = "truncate"


_WITH_AMOUNT = (Action.DELAY, Action.TRUNCATE)
_OF_VALUES = (Action.NAN, Action.TRUNCATE)
_VALUE_POINTS = ("engine.logits",)


class FailpointError(RuntimeError):
    """What an armed point with the action ``raise`` raises."""


class Trigger(NamedTuple):
    """What an armed point does, and when: at hit ``first``, and at every ``every`` hits from there (0: never again).

    ``amount`` is in milliseconds for a delay, in tokens for a truncation.
    """

    action: Action
    amount: int = 0
    first: int = 1
    every: int = 0

    def acts_at(self, hits: int) -> bool:
        """Say whether the point acts at this hit, counted from 1."""
        since = hits - self.first
        return since % self.every == 0 if since > 0 and self.every else since == 0


def parse(text: str) -> dict[str, Trigger]:
    """Read what arms points: ``name=action``, separated by commas.

    Raises:
        ValueError: a part has another form, a point is named twice, or its action means nothing there.
    """
    armed: dict[str, Trigger] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        found = _FORM.fullmatch(part)
        if found is None or found["action"] not in list(Action) or found["name"] in armed:
            raise ValueError(f"{ENVIRONMENT}: {part!r} is not name=action, name=action@hit, @hit+ or %every, said once")
        action = Action(found["action"])
        if (found["amount"] is not None) is not (action in _WITH_AMOUNT):
            raise ValueError(
                f"{ENVIRONMENT}: {part!r}: an amount goes with {' and '.join(_WITH_AMOUNT)}, and only there"
            )
        if action in _OF_VALUES and found["name"] not in _VALUE_POINTS:
            raise ValueError(f"{ENVIRONMENT}: {part!r}: only {', '.join(_VALUE_POINTS)} hands values over")
        every = int(found["every"] or bool(found["on"]))
        armed[found["name"]] = Trigger(
            action, int(found["amount"] or 0), int(found["every"] or found["hit"] or 1), every
        )
    return armed


_armed = parse(os.environ.get(ENVIRONMENT, ""))
_hits: dict[str, int] = {}
_acts: dict[tuple[str, str], bool] = {}


def of_version(version_id: str) -> str:
    """Return what the file arms for this version; it is read anew each time, and need not be there.

    Raises:
        ValueError: a line is not ``version: points``.
    """
    path = Path(os.environ.get(FILE_ENVIRONMENT, ""))
    points = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        name, colon, text = line.partition(":")
        if not colon and line.strip():
            raise ValueError(f"{FILE_ENVIRONMENT}: {line!r} is not a version, a colon and its points")
        parse(text)
        if name.strip() == version_id:
            points.append(text)
    return ", ".join(points)


def arm(text: str) -> None:
    """Arm points in this process. Raises as :func:`parse`."""
    _armed.update(parse(text))


def hit(name: str, key: str = "") -> Trigger | None:
    """Pass the point ``name``.

    Args:
        name: of the point.
        key: of the thing that passes it, where one thing passes it many times: it counts once, and meets the same
            fate each time.

    Returns:
        What the caller is to do to its values; None where that is nothing.

    Raises:
        FailpointError: it is armed with ``raise``.
    """
    trigger = _armed.get(name)
    if trigger is None or not _acts_now(name, key, trigger):
        return None
    match trigger.action:
        case Action.RAISE:
            raise FailpointError(f"failpoint {name}")
        case Action.DELAY:
            time.sleep(trigger.amount / 1000)
        case Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Action.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
    return trigger if trigger.action in _OF_VALUES else None


def _acts_now(name: str, key: str, trigger: Trigger) -> bool:
    if key and (name, key) in _acts:
        return _acts[name, key]
    _hits[name] = _hits.get(name, 0) + 1
    acts = trigger.acts_at(_hits[name])
    if key:
        _acts[name, key] = acts
    return acts
