"""The judge: what the requests of a candidate say against those of the stable version over the same time. Pure.

Every gate compares its estimate with a limit, and the bounds of the estimate with what they must exclude:

* pass: the estimate is within the limit, and the bound excludes the stop (of errors: the bound is within the limit);
* fail: the bound on the near side is beyond the limit, so the harm is shown;
* hard stop: the estimate is beyond the stop, and a bound that may be looked at after every request shows harm;
* inconclusive: anything else. No data is never a pass and never a failure.

A candidate passes when every gate does. Each may err with its whole alpha then, for one that should fail must get past
all of them (R. L. Berger, "Multiparameter hypothesis testing and acceptance sampling", 1982). Lengths may stray neither
way: two one-sided bounds (D. J. Schuirmann, "A comparison of the two one-sided tests procedure", 1987).

Latency is compared at matched concurrency: requests that were computed in batches of like size, of like input length
and, for the first token, with or without a prefix found. Answers and memory are compared within tenants. See
:func:`~controlplane.rollouts.statistics.match`.
"""

from collections.abc import Iterable, Sequence

import msgspec

from controlplane.rollouts import verdict as verdicts
from controlplane.rollouts.measures import ERRORS, RATIOS, SHARES
from controlplane.rollouts.plan import Gate, JudgeSettings, minimum_samples
from controlplane.rollouts.samples import Sample, arms_of
from controlplane.rollouts.statistics import alpha_at, z_of
from controlplane.rollouts.verdict import Arms, Outcome, Verdict

__all__ = ["NEEDS_WAIVER", "Judgement", "Outcome", "Sample", "Summary", "Verdict", "judge", "summary", "watch"]

NEEDS_WAIVER = (Gate.EVALS, Gate.SHADOW)
"""Gates that nothing measures yet: who approves must say why it may be done without them. Cost only warns."""


class Summary(msgspec.Struct, frozen=True):
    """The samples of an arm that were judged: how many, of how many tenants, from when to when."""

    requests: int = 0
    errors: int = 0
    tenants: int = 0
    from_ms: int | None = None
    to_ms: int | None = None


class Judgement(msgspec.Struct, frozen=True):
    """What the judge says of a candidate, and why; ``stable`` and ``candidate`` are what it went by."""

    outcome: Outcome
    verdicts: tuple[Verdict, ...]
    words: str
    stable: Summary
    candidate: Summary


def judge(stable: Sequence[Sample], candidate: Sequence[Sample], settings: JudgeSettings, look: int) -> Judgement:
    """Judge a candidate, once a step has its time and its samples.

    Args:
        stable: the stable arm's samples over the same time.
        candidate: the candidate's.
        settings: what it must keep to.
        look: how often this step has been judged, this time included: each look may spend less of ``alpha``. Watching
            for stops between looks is :func:`watch` and spends nothing.

    Raises:
        ValueError: looks count from 1.
    """
    arms = _side_by_side(stable, candidate, settings, look)
    said: list[Verdict | None] = [verdicts.errors_stop(arms) or verdicts.share(arms, ERRORS)]
    said += [verdicts.ratio_stop(arms, measure) or verdicts.ratio(arms, measure) for measure in RATIOS]
    said += [verdicts.share_stop(arms, measure) or verdicts.share(arms, measure) for measure in SHARES]
    found = [*_present(said), *_NOT_RUN]
    return Judgement(*_conclusion(found), summary(stable), summary(candidate))


def watch(stable: Sequence[Sample], candidate: Sequence[Sample], settings: JudgeSettings) -> Judgement:
    """Say whether a candidate must be stopped at once: ``hard_stop``, or ``inconclusive``, which goes on.

    It may be asked after every request, in every state: its bounds are always valid.
    """
    arms = _side_by_side(stable, candidate, settings, 1)
    said = [verdicts.errors_stop(arms)]
    said += [verdicts.ratio_stop(arms, measure) for measure in RATIOS]
    said += [verdicts.share_stop(arms, measure) for measure in SHARES]
    stops = _present(said)
    conclusion = _conclusion(stops) if stops else (Outcome.INCONCLUSIVE, (), "Nothing calls for a stop.")
    return Judgement(*conclusion, summary(stable), summary(candidate))


def summary(samples: Sequence[Sample]) -> Summary:
    """Return what ``samples`` are, in numbers."""
    return Summary(
        requests=len(samples),
        errors=sum(sample.error for sample in samples),
        tenants=len({sample.tenant_id for sample in samples}),
        from_ms=min((sample.at_ms for sample in samples), default=None),
        to_ms=max((sample.at_ms for sample in samples), default=None),
    )


def _side_by_side(stable: Sequence[Sample], candidate: Sequence[Sample], settings: JudgeSettings, look: int) -> Arms:
    columns = arms_of(candidate, stable)
    return Arms(columns[0], columns[1], settings, minimum_samples(settings, look), z_of(alpha_at(settings.alpha, look)))


def _present(said: Iterable[Verdict | None]) -> list[Verdict]:
    return [verdict for verdict in said if verdict is not None]


_NOT_RUN = tuple(
    Verdict(gate=gate, outcome=Outcome.NOT_RUN, words=words)
    for gate, words in (
        (Gate.EVALS, "No eval suite was run: this needs the approver's waiver"),
        (Gate.SHADOW, "No shadow traffic was run: this needs the approver's waiver"),
        (Gate.COST, "Cost is not measured yet; it would only warn"),
    )
)
_OPENINGS = {
    Outcome.HARD_STOP: "Stopped",
    Outcome.FAIL: "Failed",
    Outcome.INCONCLUSIVE: "Cannot tell yet",
}
"""The first of these that any gate says is what the judge says."""


def _conclusion(said: Sequence[Verdict]) -> tuple[Outcome, tuple[Verdict, ...], str]:
    for outcome, opening in _OPENINGS.items():
        words = [verdict.words for verdict in said if verdict.outcome is outcome]
        if words:
            return outcome, tuple(said), f"{opening}: {'; '.join(words)}."
    passed = sum(verdict.outcome is Outcome.PASS for verdict in said)
    return Outcome.PASS, tuple(said), f"All {passed} gates that were run pass."
