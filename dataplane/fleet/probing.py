"""When to probe, and what was found: a small part of the time, replica after replica, in an order that is drawn."""

import asyncio
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from dataplane.contracts import auc
from dataplane.contracts.auc import Bins
from dataplane.contracts.catalog import DeploymentEntry
from dataplane.contracts.probes import ProbeKind, ProbeReport
from dataplane.contracts.replica import ReplicaState
from dataplane.fleet import probe_trials
from dataplane.fleet.probe_trials import PACE_MS, Card, Finding, GivenUp, Target, Unfit
from dataplane.fleet.replica import Replica

WINDOW = 2000
"""Times in each sample after which the next window begins; what is reported is at most two."""
_IN_A_DECK = {ProbeKind.WITHIN: 10, ProbeKind.ACROSS: 10, ProbeKind.BATCH: 1, ProbeKind.PACED: 1}
_MAX_TALLIES = 1024
_LEAST_PAUSE_S = 1.0
"""Behind each trial, unless in a hurry; and for a replica that had real work."""
_log = structlog.get_logger(__name__)


def targets(deployments: Mapping[str, DeploymentEntry], replicas: Iterable[Replica]) -> list[Target]:
    """Return the READY replicas of deployments that more than one tenant may call: nobody else has a neighbour."""
    found = []
    for replica in replicas:
        assignment = replica.assignment
        if assignment is None or replica.state is not ReplicaState.READY:
            continue
        deployment = deployments.get(assignment.deployment_id)
        if deployment is not None and len(deployment.grants) > 1:
            found.append(
                Target(
                    replica.replica_id,
                    replica.spec.http_socket,
                    assignment.served_name,
                    assignment.deployment_id,
                    assignment.version_id,
                )
            )
    return found


def deck(draw: random.Random) -> list[Card]:
    """Return a round of trials, both sides of each kind alike often, in an order that is drawn.

    So whatever drifts (heat, caches, other load) reaches both sides alike.
    """
    cards = [Card(kind, slow) for kind, count in _IN_A_DECK.items() for slow in (True, False) for _ in range(count)]
    draw.shuffle(cards)
    return cards


def trials_for(samples: int) -> int:
    """Return how many trials give ``samples`` times in each sample of WITHIN and ACROSS: whole decks."""
    return -(-samples // _IN_A_DECK[ProbeKind.WITHIN]) * 2 * sum(_IN_A_DECK.values())


def rest_s(took_s: float, share: float) -> float:
    """Return how long to rest behind a trial that took so long, so that trials take at most ``share`` of the time."""
    return max(_LEAST_PAUSE_S, took_s * (1 / share - 1))


class Tally:
    """What was found of one kind on one replica."""

    def __init__(self, target: Target, kind: ProbeKind) -> None:
        self.trials = 0
        self.given_up = 0
        self._target = target
        self._kind = kind
        self._before: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
        self._now: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
        self._prompt_tokens = self._cached_tokens = 0

    def add(self, slow: bool, finding: Finding) -> None:
        """Count a time."""
        self.trials += 1
        self._now[slow][auc.bin_of(finding.seconds)] += 1
        self._prompt_tokens += finding.prompt_tokens
        self._cached_tokens += finding.cached_tokens
        if min(counts.total() for counts in self._now.values()) >= WINDOW:
            self._before, self._now = self._now, {True: Counter(), False: Counter()}

    def report(self) -> ProbeReport:
        """Return all of it."""
        return ProbeReport(
            replica_id=self._target.replica_id,
            deployment_id=self._target.deployment_id,
            version_id=self._target.version_id,
            kind=self._kind,
            at_ms=time.time_ns() // 1_000_000,
            slow=self._bins(slow=True),
            fast=self._bins(slow=False),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            given_up=self.given_up,
            pace_ms=PACE_MS if self._kind is ProbeKind.PACED else 0,
        )

    def _bins(self, *, slow: bool) -> Bins:
        return auc.counted(self._before[slow] + self._now[slow])


class _Key(NamedTuple):
    replica_id: str
    kind: ProbeKind


class Prober:
    """Runs trials, one at a time on the whole node.

    Args:
        targets: the replicas that may be probed now.
        share: the part of the time that trials may take when nobody asked for more; 0 is none.
        trial: runs one.
        draw: decides prompts and order.
    """

    def __init__(
        self,
        targets: Callable[[], Sequence[Target]],
        *,
        share: float,
        trial: Callable[[Target, Card, random.Random], Awaitable[Finding]] = probe_trials.run,
        draw: random.Random | None = None,
    ) -> None:
        self._left: Counter[str] = Counter()
        self._targets = targets
        self._share = share
        self._trial = trial
        self._draw = draw or random.SystemRandom()
        self._decks: dict[str, list[Card]] = {}
        self._unfit: set[str] = set()
        self._tallies: OrderedDict[_Key, Tally] = OrderedDict()
        self._taken: dict[_Key, int] = {}
        self._offered: dict[_Key, int] = {}
        self._ordered = asyncio.Event()
        self._turn = 0

    def order(self, samples: int) -> bool:
        """Run trials one behind the other until each deployment has so many more; False: there is nothing to probe."""
        replicas = Counter(target.deployment_id for target in self._fit())
        self._left = Counter({id_: trials_for(-(-samples // count)) * count for id_, count in replicas.items()})
        self._ordered.set()
        return bool(self._left)

    @property
    def trials_left(self) -> int:
        """How many trials of the latest order are still to be run, on what can be probed now."""
        return sum(self._left[id_] for id_ in {target.deployment_id for target in self._fit()})

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            pause_s = await self._probe()
            self._ordered.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._ordered.wait()
            except TimeoutError:
                pass

    async def finish(self) -> bool:
        """Run what was ordered and return; False: some of it is on what cannot be probed any more."""
        while self.trials_left:
            await asyncio.sleep(await self._probe() or 0.0)
        return not self._left.total()

    async def _probe(self) -> float | None:
        """Run a trial if there is one to run; return how long to rest behind it, None as long as nobody orders any."""
        if not (self._share or self._left.total()):
            return None
        fit = self._fit()
        ordered = [target for target in fit if self._left[target.deployment_id]]
        fit = ordered or (fit if self._share else [])
        if not fit:  # what was ordered may come back
            return _LEAST_PAUSE_S
        target = fit[self._turn % len(fit)]
        self._turn += 1
        began_s = time.monotonic()
        went_well = await self._try(target)
        if ordered:
            return 0.0 if went_well else _LEAST_PAUSE_S
        if not self._share:
            return None
        return rest_s(time.monotonic() - began_s, self._share)

    async def _try(self, target: Target) -> bool:
        cards = self._decks.setdefault(target.replica_id, [])
        if not cards:
            cards += deck(self._draw)
        card = cards.pop()  # one that is given up does not come again: it may be what always fails
        tally = self._tally(target, card.kind)
        try:
            finding = await self._trial(target, card, self._draw)
        except GivenUp:
            tally.given_up += 1
            return False
        except Unfit as error:
            self._unfit.add(target.replica_id)
            _log.warning("fleet.cannot_probe", replica_id=target.replica_id, error=str(error))
            return False
        except Exception:  # noqa: BLE001 - a fault in probing must not end the fleet
            self._unfit.add(target.replica_id)
            _log.exception("fleet.probe_failed", replica_id=target.replica_id)
            return False
        tally.add(card.slow, finding)
        self._left[target.deployment_id] = max(0, self._left[target.deployment_id] - 1)
        return True

    def _fit(self) -> list[Target]:
        found = self._targets()
        here = {target.replica_id for target in found}
        self._unfit &= here
        self._decks = {replica_id: cards for replica_id, cards in self._decks.items() if replica_id in here}
        return [target for target in found if target.replica_id not in self._unfit]

    def _tally(self, target: Target, kind: ProbeKind) -> Tally:
        key = _Key(target.replica_id, kind)
        tally = self._tallies.setdefault(key, Tally(target, kind))
        self._tallies.move_to_end(key)
        while len(self._tallies) > _MAX_TALLIES:
            old, _ = self._tallies.popitem(last=False)
            self._taken.pop(old, None)
        return tally

    def reports(self) -> tuple[ProbeReport, ...]:
        """Return all that was found on the replicas of late."""
        return tuple(tally.report() for tally in self._tallies.values() if tally.trials)

    def unsent(self) -> tuple[ProbeReport, ...]:
        """Return what has grown since :meth:`sent` was called last."""
        self._offered = {
            key: tally.trials for key, tally in self._tallies.items() if tally.trials != self._taken.get(key, 0)
        }
        return tuple(self._tallies[key].report() for key in self._offered)

    def sent(self) -> None:
        """Hear that the control plane has what :meth:`unsent` returned."""
        self._taken |= self._offered
