"""Trials: a version that no deployment serves yet is loaded once, answers one generation, and its process ends.

A trial is an entry in the fleet's own view of the catalog, so it starts, is watched, fails and ends as everything else
does. Gateways have no such entry: they route nothing to it.
"""

import asyncio
from collections import OrderedDict, deque

import msgspec

from dataplane.contracts.catalog import Arm, Catalog, DeploymentEntry
from dataplane.contracts.replica import TRIAL_PREFIX, TrialReport, TrialRequest, TrialState

LONGEST_S = 900.0
_REMEMBERED = 200
_KEPT_FILES = 20
_KEPT_FILES_S = 3600.0


def deployment_id(version_id: str) -> str:
    """Return the reserved deployment id under which a version is tried."""
    return f"{TRIAL_PREFIX}{version_id}"


def is_trial(deployment: str) -> bool:
    """Say whether a deployment id is a trial's."""
    return deployment.startswith(TRIAL_PREFIX)


class Trials:
    """Those that run, and how the latest ended. Clocks are the caller's, in seconds."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[TrialRequest, float]] = {}
        self._reports: OrderedDict[str, TrialReport] = OrderedDict()
        self._changed = asyncio.Event()
        self._passed: deque[tuple[str, float]] = deque(maxlen=_KEPT_FILES)

    def begin(self, request: TrialRequest, now_s: float) -> None:
        """Begin a trial; one of the same version that runs goes on, one that has ended is made again."""
        version_id = request.version.id
        if version_id not in self._running:
            self._running[version_id] = (request, now_s)
            self._tell(TrialReport(version_id, TrialState.RUNNING, "waits for a process"))

    def overlay(self, catalog: Catalog) -> Catalog:
        """Return ``catalog`` with the running trials in it."""
        if not self._running:
            return catalog
        requests = [request for request, _ in self._running.values()]
        return msgspec.structs.replace(
            catalog,
            versions=catalog.versions | {request.version.id: request.version for request in requests},
            deployments=catalog.deployments | {deployment_id(r.version.id): _deployment(r) for r in requests},
        )

    def digests(self, now_s: float) -> set[str]:
        """Return digests of what is tried, and of what passed lately: a deployment may serve it soon."""
        running = {request.version.digest for request, _ in self._running.values()}
        return running | {digest for digest, passed_s in self._passed if now_s - passed_s < _KEPT_FILES_S}

    def waits(self, deployment: str, cause: str) -> None:
        """Say what a trial waits for."""
        version_id = deployment.removeprefix(TRIAL_PREFIX)
        if version_id in self._running:
            self._tell(TrialReport(version_id, TrialState.RUNNING, cause))

    def passed(self, deployment: str, first_token_ms: int, now_s: float) -> None:
        """End a trial: the version answered."""
        known = self._running.get(deployment.removeprefix(TRIAL_PREFIX))
        if known is not None:
            self._passed.append((known[0].version.digest, now_s))
        self._end(deployment, TrialState.PASSED, "a first generation was answered", first_token_ms)

    def failed(self, deployment: str, cause: str) -> None:
        """End a trial: the version did not load, or did not answer."""
        self._end(deployment, TrialState.FAILED, cause)

    def given_up(self, deployment: str, cause: str) -> None:
        """End a trial: this node could not make it, and the version is not to blame."""
        self._end(deployment, TrialState.GIVEN_UP, cause)

    def expire(self, now_s: float) -> None:
        """End those that take too long."""
        for version_id, (_, begun_s) in list(self._running.items()):
            if now_s - begun_s > LONGEST_S:
                why = self._reports[version_id].cause
                cause = f"not over after {LONGEST_S:.0f} s; at last: {why}"
                self.given_up(deployment_id(version_id), cause)

    def _end(self, deployment: str, state: TrialState, cause: str, first_token_ms: int = 0) -> None:
        version_id = deployment.removeprefix(TRIAL_PREFIX)
        if self._running.pop(version_id, None) is not None:
            self._tell(TrialReport(version_id, state, cause, first_token_ms))

    def _tell(self, report: TrialReport) -> None:
        if self._reports.get(report.version_id) == report:
            return
        self._reports[report.version_id] = report
        self._reports.move_to_end(report.version_id)
        for version_id in list(self._reports)[:-_REMEMBERED]:
            if version_id not in self._running:
                del self._reports[version_id]
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def report(self, version_id: str, wait_s: float) -> TrialReport | None:
        """Return how a trial stands, once it has ended or ``wait_s`` have passed; None: there is none."""
        try:
            async with asyncio.timeout(wait_s):
                while self._is_running(version_id):
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._reports.get(version_id)

    def _is_running(self, version_id: str) -> bool:
        report = self._reports.get(version_id)
        return report is not None and report.state is TrialState.RUNNING


def _deployment(request: TrialRequest) -> DeploymentEntry:
    return DeploymentEntry(
        id=deployment_id(request.version.id),
        tenant_id=request.version.tenant_id,
        name="trial",
        active=True,
        arms=(Arm(version_id=request.version.id, weight=100),),
        grants={},
        engine=request.engine,
    )
