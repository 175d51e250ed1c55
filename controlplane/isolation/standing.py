"""Whether a tenant's isolation is kept, as far as the figures say. Pure: each promise has its own standing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from controlplane.isolation.reading import Reading
from dataplane.contracts.auc import Separation
from dataplane.contracts.probes import ProbeKind

AUC_LIMIT = 0.55
"""What the upper bound across tenants may not pass: next to a coin's 0.5."""
CONTROL_AUC = 0.9
"""What probes must see within a tenant: those that see less are blind, and prove nothing."""
ENOUGH_TRIALS = 2_000
FIGURES_STALE_AFTER = timedelta(minutes=3)
"""A replica's word is taken at least every minute while it is heard."""
PROBES_STALE_AFTER = timedelta(days=1)


class Standing(StrEnum):
    """How a promise stands.

    UNMEASURED: no figure yet. STALE: the last is old. BLIND: the probes fail their control, so they prove nothing. FEW:
    too few trials to say. UNPROVEN: enough trials, and the bounds still hold both answers.
    """

    KEPT = "kept"
    UNMEASURED = "unmeasured"
    STALE = "stale"
    FEW = "few"
    UNPROVEN = "unproven"
    BLIND = "blind"
    BROKEN = "broken"


_WORST_FIRST = (
    Standing.BROKEN, Standing.BLIND, Standing.UNPROVEN, Standing.FEW, Standing.STALE, Standing.UNMEASURED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """What probes of one kind found, all replicas of a deployment together.

    Args:
        kind: what they looked at.
        separation: how well two samples of times can be told apart; None where there are none yet.
        at: when the last of them ended.
        prompt_tokens: tokens of prompts that had been sent before.
        cached_tokens: those of them that came from the cache.
        pace_ms: how tokens were paced, for PACED.
        given_up: trials that made room for real work. It tells of others' work: for the platform only.
    """

    kind: ProbeKind
    separation: Separation | None
    at: datetime
    prompt_tokens: int = 0
    cached_tokens: int = 0
    pace_ms: int = 0
    given_up: int = 0

    @property
    def trials(self) -> int:
        """How many times were compared: of the smaller sample."""
        return min(self.separation.num_slow, self.separation.num_fast) if self.separation else 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """How each promise stands: memory within the guarantee, turns within the bound, a cache that nobody else sees."""

    memory: Standing
    turns: Standing
    cache: Standing

    @property
    def worst(self) -> Standing:
        """The one that decides what is said first."""
        found = (self.memory, self.turns, self.cache)
        return next((standing for standing in _WORST_FIRST if standing in found), Standing.KEPT)


def judge(
    reading: Reading,
    seen_at: datetime | None,
    findings: Mapping[ProbeKind, Finding],
    *,
    now: datetime,
    is_alone: bool = False,
) -> Judgement:
    """Judge a tenant's figures.

    Args:
        reading: of the time that is looked at.
        seen_at: when a replica was last heard; None for never.
        findings: of probes, by kind.
        now: the time.
        is_alone: nobody else may call the deployment, so nobody could look into the cache, and no probe runs.
    """
    cache = _cache(findings.get(ProbeKind.ACROSS), findings.get(ProbeKind.WITHIN), now)
    age = _age(seen_at, now, FIGURES_STALE_AFTER)
    return Judgement(
        memory=Standing.BROKEN if reading.breaches else age,
        turns=Standing.BROKEN if reading.nearness > 1 else age,
        cache=Standing.KEPT if is_alone else cache,
    )


def _age(seen_at: datetime | None, now: datetime, stale_after: timedelta) -> Standing:
    if seen_at is None:
        return Standing.UNMEASURED
    return Standing.STALE if now - seen_at > stale_after else Standing.KEPT


def _cache(across: Finding | None, control: Finding | None, now: datetime) -> Standing:
    if across is not None and _leaks(across):
        return Standing.BROKEN
    if across is None or control is None or across.separation is None or control.separation is None:
        return Standing.UNMEASURED
    if min(across.trials, control.trials) < ENOUGH_TRIALS:
        return Standing.FEW
    if control.separation.auc < CONTROL_AUC:
        return Standing.BLIND
    if across.separation.high > AUC_LIMIT:
        return Standing.UNPROVEN
    return _age(min(across.at, control.at), now, PROBES_STALE_AFTER)


def _leaks(across: Finding) -> bool:
    """Another's tokens came from the cache, which no time has to be measured for, or times surely differ."""
    return across.cached_tokens > 0 or (across.separation is not None and across.separation.low > AUC_LIMIT)
