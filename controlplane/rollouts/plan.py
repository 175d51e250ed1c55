"""How a rollout goes: its steps, their times and samples, and what the judge asks of them. Pure.

The limits are this product's own promises. How many samples a gate needs follows from its limit, by
:func:`minimum_samples`: a plan that asks for fewer is refused.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from controlplane.deployments import bounds
from controlplane.deployments.bounds import Faults
from controlplane.rollouts.statistics import alpha_at, samples_without_events, z_of
from tenants.errors import Invalid

MAX_STEPS = 12
MAX_HOLD_S = 7 * 24 * 3600
MAX_SAMPLES = 10_000
"""The most samples of an arm that the judge reads, the latest first: no step can ask for more."""
POWER = 0.8
"""How surely a gate sees the effect that its verdict says it could have seen."""
_LENGTH_SPREAD = 1.0
"""Standard deviation of the logarithm of answer lengths that samples are reckoned with before any were seen."""
_MEDIAN_ERROR = math.sqrt(math.pi / 2)
"""The median of n normal samples has this times their deviation over the root of n as its standard error."""


class Gate(StrEnum):
    """What the judge looks at."""

    EVALS = "evals"
    SHADOW = "shadow"
    ERRORS = "errors"
    TTFT_P95 = "ttft_p95"
    TTFT_P99 = "ttft_p99"
    TPOT_P95 = "tpot_p95"
    TPOT_P99 = "tpot_p99"
    LENGTH = "output_length"
    LENGTH_LIMIT = "finish_length"
    KV_BLOCKS = "kv_blocks"
    PREEMPTIONS = "preemptions"
    COST = "cost"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The candidate takes ``weight`` per cent for at least ``hold_s`` seconds and ``min_samples`` of its requests."""

    weight: int
    hold_s: int
    min_samples: int


class JudgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """What a candidate must keep to. Each gate has a limit for its estimate and a stop, which its bound must exclude.

    ``alpha`` is the chance, over all looks of a step, that a gate passes what is at its stop (of ``errors``: at its
    margin); ``stop_alpha`` the chance that a gate stops a candidate like the stable version, however often it is
    watched. Margins are differences of shares (0.005 is half a percentage point); limits are ratios to the stable arm,
    and for lengths hold either way. ``errors`` stops at ``early_errors`` in the first ``early_requests`` as well.
    ``share_*`` are for answers cut at their length limit and for preempted requests. No p95 is compared with under
    ``quantile_samples`` of each arm.

    ``accept_unproven`` lets estimates within their limits pass without a bound that proves it, for deployments with
    little traffic; every verdict then says so.
    """

    alpha: float = 0.05
    stop_alpha: float = 0.001
    error_margin: float = 0.005
    error_stop: float = 0.02
    early_errors: int = 5
    early_requests: int = 100
    ttft_limit: float = 1.15
    ttft_stop: float = 1.5
    tpot_limit: float = 1.10
    tpot_stop: float = 1.3
    quantile_samples: int = 500
    length_limit: float = 1.15
    length_stop: float = 1.5
    share_margin: float = 0.01
    share_stop: float = 0.2
    kv_limit: float = 1.10
    kv_stop: float = 1.5
    accept_unproven: bool = False


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rollout from its first step to the end.

    ``ramp_s`` seconds pass after each change of weight before samples count. After the step of weight ``approval_at``
    a person is asked. The candidate then bakes ``bake_100_s`` with all traffic, and the version before it stays asleep
    in host memory for ``keep_previous_s`` from then on.
    """

    steps: tuple[Step, ...]
    ramp_s: int = 60
    approval_at: int = 50
    bake_100_s: int = 1800
    keep_previous_s: int = 3600
    judge: JudgeSettings = JudgeSettings()


def minimum_samples(settings: JudgeSettings, look: int = 1) -> dict[Gate, int]:
    """Return how many requests of the candidate each gate needs at the least, at look number ``look``.

    They suffice where the candidate is as good as the stable version, and prove nothing of one that is not quite.
    """
    z = z_of(alpha_at(settings.alpha, look))
    both = z + z_of(1 - POWER)
    lengths = (both * _MEDIAN_ERROR * math.sqrt(2) * _LENGTH_SPREAD / math.log(settings.length_stop)) ** 2
    shares = samples_without_events(settings.share_stop, z)
    return {
        Gate.ERRORS: samples_without_events(settings.error_margin, z),
        Gate.TTFT_P95: settings.quantile_samples,
        Gate.TPOT_P95: settings.quantile_samples,
        Gate.LENGTH: math.ceil(lengths),
        Gate.LENGTH_LIMIT: shares,
        Gate.KV_BLOCKS: math.ceil(lengths),
        Gate.PREEMPTIONS: shares,
    }


def least_samples(settings: JudgeSettings) -> int:
    """Return how many requests of the candidate a step needs so that every gate can pass at its first look."""
    return max(minimum_samples(settings).values())


def _default_plan() -> Plan:
    samples = least_samples(JudgeSettings())
    holds_s = {1: 600, 5: 900, 25: 1800, 50: 1800}
    return Plan(steps=tuple(Step(weight, hold_s, samples) for weight, hold_s in holds_s.items()))


DEFAULT_PLAN = _default_plan()


def scaled(plan: Plan, *, samples: float, time: float = 1.0) -> Plan:
    """Return ``plan`` with ``samples`` times its samples and ``time`` times its seconds: for tests, and little traffic.

    Fewer samples prove less, so every limit widens to what they still can prove: the error margin as
    :func:`samples_without_events` has it, the others by the root of ``samples``, ratios on the log scale.

    Args:
        plan: of which sizes.
        samples: a factor over 0, up to 1.
        time: a factor from 0.
    """
    judge = _widened(plan.judge, samples)
    least = least_samples(judge)
    return Plan(
        steps=tuple(
            Step(step.weight, round(step.hold_s * time), max(least, math.ceil(step.min_samples * samples)))
            for step in plan.steps
        ),
        ramp_s=round(plan.ramp_s * time),
        approval_at=plan.approval_at,
        bake_100_s=round(plan.bake_100_s * time),
        keep_previous_s=plan.keep_previous_s,
        judge=judge,
    )


def _widened(settings: JudgeSettings, factor: float) -> JudgeSettings:
    z = z_of(alpha_at(settings.alpha, 1))
    errors = math.ceil(minimum_samples(settings)[Gate.ERRORS] * factor)
    margin = max(settings.error_margin, z * z / (errors + z * z))
    wider = 1 / math.sqrt(factor)

    def share(value: float) -> float:
        return min(_MOST_SHARE, value * wider)

    ratios = {name: getattr(settings, name) ** wider for name in _RATIOS}
    return msgspec.structs.replace(
        settings,
        error_margin=margin,
        error_stop=min(_MOST_SHARE, settings.error_stop * margin / settings.error_margin),
        quantile_samples=max(_LEAST_QUANTILE_SAMPLES, math.ceil(settings.quantile_samples * factor)),
        share_margin=share(settings.share_margin),
        share_stop=share(settings.share_stop),
        **{name: min(_MOST_RATIO, value) for name, value in ratios.items()},
    )


# --- from and to JSON


def to_json(plan: Plan) -> dict[str, Any]:
    """Return ``plan`` as JSON that :func:`from_json` reads."""
    written: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(plan))
    return written


def from_json(raw: Mapping[str, Any]) -> Plan:
    """Return the plan that ``raw`` says, checked.

    Raises:
        Invalid: a field is unknown, missing, of another type or out of bounds.
    """
    try:
        plan = msgspec.convert(dict(raw), Plan)
    except msgspec.ValidationError as error:
        raise Invalid(f"This is no plan: {error}.", fields={"plan": str(error)}) from None
    bounds.refuse(plan_faults(plan))
    return plan


# --- bounds

_RATIOS = ("ttft_limit", "ttft_stop", "tpot_limit", "tpot_stop", "length_limit", "length_stop", "kv_limit", "kv_stop")
_MOST_RATIO = 100.0
_MOST_SHARE = 0.95
_LEAST_QUANTILE_SAMPLES = 20
"""A p95 of fewer is their maximum."""
_SHARES = ("error_margin", "error_stop", "share_margin", "share_stop")
_PAIRS = (
    ("error_margin", "error_stop"), ("ttft_limit", "ttft_stop"), ("tpot_limit", "tpot_stop"),
    ("length_limit", "length_stop"), ("share_margin", "share_stop"), ("kv_limit", "kv_stop"),
)  # fmt: skip


def plan_faults(plan: Plan) -> Faults:
    """Return what is wrong with ``plan``: each fault by its field, with its mend."""
    faults: Faults = judge_faults(plan.judge)
    for field, low, high in (
        ("ramp_s", 0, MAX_HOLD_S), ("bake_100_s", 0, MAX_HOLD_S), ("keep_previous_s", 0, 24 * 3600),
    ):  # fmt: skip
        if not low <= getattr(plan, field) <= high:
            faults[field] = f"This is a number of seconds from {low} to {high}."
    reason = _steps_fault(plan, checks_samples=not faults)
    if reason:
        faults["steps"] = reason
    elif plan.approval_at not in [step.weight for step in plan.steps]:
        faults["approval_at"] = "Approval is asked after a step: this is the weight of one of them."
    return faults


def judge_faults(settings: JudgeSettings) -> Faults:
    """Return what is wrong with the judge's settings."""
    faults: Faults = {}
    ranges: dict[str, tuple[float, float]] = {
        "alpha": (0.001, 0.2), "stop_alpha": (1e-6, 0.01), "early_errors": (2, 100), "early_requests": (10, 1000),
        "quantile_samples": (_LEAST_QUANTILE_SAMPLES, MAX_SAMPLES),
        **dict.fromkeys(_SHARES, (0.0001, _MOST_SHARE)), **dict.fromkeys(_RATIOS, (1.01, _MOST_RATIO)),
    }  # fmt: skip
    for field, (low, high) in ranges.items():
        if not low <= getattr(settings, field) <= high:  # NaN is not, either
            faults[field] = f"This is from {low:g} to {high:g}."
    for limit, stop in _PAIRS:
        if not faults.keys() & {limit, stop} and getattr(settings, stop) < getattr(settings, limit):
            faults[stop] = f"A stop is not before its limit: {limit} is {getattr(settings, limit):g}."
    return faults


def _steps_fault(plan: Plan, *, checks_samples: bool) -> str:
    steps, weights = plan.steps, [step.weight for step in plan.steps]
    rising = weights == sorted(set(weights)) and all(1 <= weight < 100 for weight in weights)
    checks = (
        (1 <= len(steps) <= MAX_STEPS, f"There are from 1 to {MAX_STEPS} steps."),
        (rising, "Weights are from 1 to 99 per cent, each greater than the one before it."),
        (
            all(0 <= step.hold_s <= MAX_HOLD_S for step in steps),
            f"hold_s is a number of seconds from 0 to {MAX_HOLD_S}.",
        ),
        (all(1 <= step.min_samples <= MAX_SAMPLES for step in steps), f"min_samples is from 1 to {MAX_SAMPLES}."),
    )
    fault = next((reason for holds, reason in checks if not holds), "")
    if fault or not checks_samples or plan.judge.accept_unproven:
        return fault
    needs = minimum_samples(plan.judge)
    gate = max(needs, key=needs.__getitem__)
    if all(step.min_samples >= needs[gate] for step in steps):
        return ""
    return (
        f"Fewer than {needs[gate]} samples cannot prove what the gate {gate} asks: raise min_samples, widen the limit, "
        "or set accept_unproven."
    )


# --- words and times


class StepTime(msgspec.Struct, frozen=True):
    """How long a step will take. ``seconds`` None: never, at this traffic. ``waits_for`` is what takes longest."""

    weight: int
    seconds: int | None
    waits_for: str
    words: str


def step_times(plan: Plan, requests_per_minute: float) -> tuple[StepTime, ...]:
    """Return how long each step takes at this traffic: its ramp, then its time or its samples, whatever is later.

    Samples are needed of the candidate's requests and, for the gates that compare quantiles, of the stable arm's.
    """
    return tuple(_step_time(plan, step, requests_per_minute) for step in plan.steps)


def _step_time(plan: Plan, step: Step, requests_per_minute: float) -> StepTime:
    per_s = requests_per_minute / 60
    needed = max(step.min_samples / step.weight, plan.judge.quantile_samples / (100 - step.weight)) * 100
    if per_s <= 0:
        words = f"{step.weight} %: there is no traffic, so {step.min_samples} samples never come."
        return StepTime(step.weight, None, "samples", words)
    samples_s = math.ceil(needed / per_s)
    seconds = plan.ramp_s + max(step.hold_s, samples_s)
    if samples_s > step.hold_s:
        why = f"{step.min_samples} samples take that long at {requests_per_minute:.3g} requests a minute"
        return StepTime(step.weight, seconds, "samples", f"{step.weight} %: about {span(seconds)}; {why}.")
    return StepTime(step.weight, seconds, "hold", f"{step.weight} %: {span(seconds)}, the step's own time.")


def in_words(plan: Plan) -> tuple[str, ...]:
    """Say what ``plan`` does, a sentence a line."""
    lines = [
        f"{step.weight} % of the traffic for at least {span(step.hold_s)} and {step.min_samples} requests."
        + (" Then a person other than the author approves." if step.weight == plan.approval_at else "")
        for step in plan.steps
    ]
    lines.append(f"Then all traffic, watched for {span(plan.bake_100_s)} more.")
    lines.append(f"The version before stays asleep for {span(plan.keep_previous_s)}, so rolling back loads nothing.")
    if plan.judge.accept_unproven:
        lines.append("Its samples are too few to prove what its gates ask: estimates within the limits pass.")
    return tuple(lines)


def span(seconds: int) -> str:
    """5400 is ``1 h 30 min``, 90 is ``1 min 30 s``, 200,000 is ``2 d 7 h``: the two largest units that count."""
    parts = []
    rest = seconds
    for size, unit in ((24 * 3600, "d"), (3600, "h"), (60, "min"), (1, "s")):
        number, rest = divmod(rest, size)
        parts.append((number, unit))
    first = next((index for index, (number, _) in enumerate(parts) if number), len(parts) - 1)
    shown = [f"{number} {unit}" for number, unit in parts[first : first + 2] if number]
    return " ".join(shown) or "0 s"
