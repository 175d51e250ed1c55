"""Has the fleet load a version once and generate with it: the last check before a version is ready.

The answers come from our own fleet and are bounded all the same: in size, in time, and to its own address.
"""

import time
from collections.abc import Callable, Collection

import httpx
import msgspec
from django.conf import settings

from dataplane.contracts.internal_calls import authorization
from dataplane.contracts.replica import TrialReport, TrialRequest, TrialState

_WAIT_S = 5.0
"""How long one question waits for news; the caller renews its lease between two."""
_TIMEOUT = httpx.Timeout(5.0, read=_WAIT_S + 10.0)
_MAX_ANSWER_BYTES = 64 * 1024
_UNKNOWN = httpx.codes.NOT_FOUND


class FleetAway(Exception):
    """The fleet cannot be asked now; the version is not to blame."""


def run(request: TrialRequest, *, patience_s: float, tell: Callable[[TrialReport], None]) -> TrialReport:
    """Have the version tried, and return how the trial ended.

    A trial that is under way is joined and one that came to a verdict is believed: a version does not change.

    Args:
        request: the version, and how to run it.
        patience_s: how long the fleet may take.
        tell: told of each answer while the trial runs; what it raises ends the waiting.

    Raises:
        FleetAway: the fleet does not answer as it should, or has no verdict in time.
    """
    with httpx.Client(
        base_url=settings.PAGODA_FLEET_URL,
        headers={"Authorization": authorization(settings.PAGODA_INTERNAL_SECRET)},
        timeout=_TIMEOUT,
        trust_env=False,
    ) as fleet:
        report = _ask(fleet, request.version.id)
        if report is None or report.state is TrialState.GIVEN_UP:
            _call(fleet, "POST", "/trials", {httpx.codes.ACCEPTED}, content=msgspec.json.encode(request))
            report = TrialReport(request.version.id, TrialState.RUNNING)
        due = time.monotonic() + patience_s
        while report.state is TrialState.RUNNING:
            if time.monotonic() > due:
                raise FleetAway(f"the trial was not over after {patience_s:g} s: {report.cause}")
            tell(report)
            news = _ask(fleet, request.version.id)
            if news is None:
                raise FleetAway("the fleet has forgotten the trial: it was started again")
            report = news
    if report.state is TrialState.GIVEN_UP:
        raise FleetAway(f"the fleet gave the trial up: {report.cause}")
    return report


def _ask(fleet: httpx.Client, version_id: str) -> TrialReport | None:
    """Return how the trial stands after a while; None: the fleet knows of none."""
    status, answer = _call(fleet, "GET", f"/trials/{version_id}?wait_s={_WAIT_S:g}", {httpx.codes.OK, _UNKNOWN})
    if status == _UNKNOWN:
        return None
    try:
        return msgspec.json.decode(answer, type=TrialReport)
    except msgspec.DecodeError as error:
        raise FleetAway(f"the fleet answered something else than a report: {error}") from error


def _call(
    fleet: httpx.Client, method: str, path: str, expected: Collection[int], content: bytes | None = None
) -> tuple[int, bytes]:
    try:
        with fleet.stream(method, path, content=content) as answer:
            body = b""
            for part in answer.iter_bytes():
                body += part
                if len(body) > _MAX_ANSWER_BYTES:
                    raise FleetAway(f"the fleet answered more than {_MAX_ANSWER_BYTES} bytes")
    except httpx.HTTPError as error:
        raise FleetAway(f"the fleet at {settings.PAGODA_FLEET_URL} does not answer: {error}") from error
    if answer.status_code not in expected:
        raise FleetAway(f"the fleet answered {method} {path} with {answer.status_code}: {body[:300]!r}")
    return answer.status_code, body
