"""Rollouts in words: their states, gates and verdicts, what a rollback does, and times that people type. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.rollouts.plan import Gate
from controlplane.rollouts.states import LIVE, WEIGHTY, RolloutState
from controlplane.rollouts.view import View, candidate_weight

_S = RolloutState
STATES: dict[RolloutState, tuple[str, str]] = {
    _S.DRAFT: ("Draft", "info"),
    _S.PREFLIGHT: ("Preflight", "info busy"),
    _S.LOADING: ("Loading", "info busy"),
    _S.WARM: ("Warm", "info busy"),
    _S.SHADOW: ("Warm", "info busy"),
    _S.RAMP: ("Ramping", "info busy"),
    _S.BAKE: ("Baking", "info busy"),
    _S.JUDGE: ("Judging", "info busy"),
    _S.AWAITING_APPROVAL: ("Waits for approval", "warn"),
    _S.PROMOTING: ("Promoting", "info busy"),
    _S.BAKING_100: ("Watched at 100 %", "info busy"),
    _S.PROMOTED: ("Promoted", "good"),
    _S.PAUSED: ("Paused", "warn"),
    _S.INCONCLUSIVE: ("Not enough data", "warn"),
    _S.ROLLING_BACK: ("Rolling back", "bad busy"),
    _S.ROLLED_BACK: ("Rolled back", "bad"),
    _S.ABORTED: ("Given up", "warn"),
    _S.SUPERSEDED: ("Superseded", "warn"),
}
"""What people call a state, and the classes of its badge."""

OUTCOMES: dict[str, tuple[str, str]] = {
    "pass": ("Passed", "good"),
    "fail": ("Failed", "bad"),
    "hard_stop": ("Stopped it", "bad"),
    "inconclusive": ("Not enough data", "warn"),
    "not_run": ("Not run", "info"),
}
FITS: dict[str, tuple[str, str]] = {
    "co_resident": ("Fits side by side", "good"),
    "separate": ("Fits on nodes of its own", "good"),
    "refused": ("Does not fit", "bad"),
}

_SHARE, _MS = "share", "ms"
GATES: dict[Gate, tuple[str, str]] = {
    Gate.ERRORS: ("Errors", _SHARE),
    Gate.TTFT_P95: ("First token, p95", _MS),
    Gate.TTFT_P99: ("First token, p99", _MS),
    Gate.TPOT_P95: ("Per output token, p95", _MS),
    Gate.TPOT_P99: ("Per output token, p99", _MS),
    Gate.LENGTH: ("Length of answers, median", "tokens"),
    Gate.LENGTH_LIMIT: ("Answers cut at their limit", _SHARE),
    Gate.KV_BLOCKS: ("KV memory of a request", "blocks"),
    Gate.PREEMPTIONS: ("Preempted requests", _SHARE),
    Gate.COST: ("Cost", ""),
    Gate.EVALS: ("Evals", ""),
    Gate.SHADOW: ("Shadow traffic", ""),
}
"""What people call a gate, and the unit of what it measures."""
WAIVERS: dict[str, str] = {
    Gate.EVALS: "No eval suite says whether the answers are as good as before.",
    Gate.SHADOW: "The candidate has not answered copies of real requests before it had traffic.",
}
"""What it means that a gate was not run."""


@dataclass(frozen=True, slots=True)
class GateLine:
    """What one gate said, as a table shows it; empty where it measured nothing."""

    gate: str
    outcome: str
    tone: str
    stable: str
    candidate: str
    limit: str
    samples: str
    words: str
    effect: str


def gate_lines(evidence: Mapping[str, Any]) -> list[GateLine]:
    """Return what the gates said, in the judge's order, from what the journal keeps."""
    return [_gate_line(verdict) for verdict in evidence.get("verdicts", ())]


def _gate_line(verdict: Mapping[str, Any]) -> GateLine:
    label, unit = GATES[Gate(verdict["gate"])]
    outcome, tone = OUTCOMES[verdict["outcome"]]
    candidates, needed = verdict.get("samples_candidate", 0), verdict.get("needed", 0)
    return GateLine(
        gate=label,
        outcome=outcome,
        tone=tone,
        stable=measured(verdict.get("stable_value"), unit),
        candidate=measured(verdict.get("candidate_value"), unit),
        limit=_limit(verdict.get("limit"), unit),
        samples="" if not needed else f"{candidates:,} of {needed:,}" if candidates < needed else f"{candidates:,}",
        words=verdict["words"],
        effect=verdict.get("effect_words", ""),
    )


def measured(value: float | None, unit: str) -> str:
    """0.0123 as a share is ``1.23 %``, 412.3 ms is ``412 ms``; nothing is empty."""
    if value is None:
        return ""
    if unit == _SHARE:
        return f"{value:.2%}".replace("%", " %")
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _limit(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"+{100 * value:.3g} pp" if unit == _SHARE else f"×{value:.3g}"


def judged_words(evidence: Mapping[str, Any]) -> str:
    """Say what the judge said and by how many requests; empty where nothing was judged."""
    if not evidence:
        return ""
    candidate, stable = (evidence.get(arm, {}).get("requests", 0) for arm in ("candidate", "stable"))
    counted = f" {candidate:,} of its requests against {stable:,}." if candidate or stable else ""
    return f"{evidence.get('words', '')}{counted}".strip()


def consequence(view: View, *, stable: str, candidate: str) -> str:
    """Say what a rollback does now.

    Args:
        view: the rollout.
        stable: what people call the version that it goes back to.
        candidate: what they call the other one.
    """
    if view.state is RolloutState.PROMOTED:
        return (
            f"{stable} is woken from memory. As soon as it is ready it takes all traffic again; until then {candidate} "
            "goes on serving."
        )
    if view.at_work in WEIGHTY:
        return (
            f"All traffic goes back to {stable}, which is ready, within about a second. Now {candidate_weight(view)} % "
            f"go to {candidate}; answers under way there are finished. The rollout ends."
        )
    if view.state in LIVE:
        return f"{candidate} has no traffic. It is unloaded, the rollout ends, and callers notice nothing."
    return "Nothing is left to take back: the rollout is over."


# --- times that people type

_UNITS_S = {"d": 24 * 3600, "h": 3600, "min": 60, "s": 1}
_SPAN = re.compile(r"\s*(?:(\d{1,6})\s*(d|h|min|s)\s*)", re.IGNORECASE)


def seconds(text: str) -> int | None:
    """``1 h 30 min`` is 5400, ``90 s`` is 90, ``0`` is 0; None for what is no time with its unit."""
    if text.strip() == "0":
        return 0
    total, at = 0, 0
    while at < len(text):
        part = _SPAN.match(text, at)
        if part is None:
            return None
        total += int(part[1]) * _UNITS_S[part[2].lower()]
        at = part.end()
    return total if at else None
