"""Whether a promise is kept follows from the figures: bounds and controls, never from the wish."""

from datetime import timedelta

import pytest
from isolation_world import BEGIN, ENOUGH, alike, apart

from controlplane.isolation.reading import Reading
from controlplane.isolation.standing import AUC_LIMIT, Finding, Judgement, Standing, judge
from dataplane.contracts.auc import binned, separation
from dataplane.contracts.probes import ProbeKind

NOW = BEGIN


def finding(kind: ProbeKind, samples, at=NOW, **fields) -> Finding:
    return Finding(kind, separation(*samples), at, **fields)


def findings(across=None, control=None, **fields) -> dict[ProbeKind, Finding]:
    return {
        ProbeKind.ACROSS: finding(ProbeKind.ACROSS, across or alike(), **fields),
        ProbeKind.WITHIN: finding(ProbeKind.WITHIN, control or apart()),
    }


def judged(reading: Reading = Reading(), seen_at=NOW, found=None) -> Judgement:  # noqa: B008 - it is frozen
    return judge(reading, seen_at, findings() if found is None else found, now=NOW)


def shifted(part: float):
    """Two samples of which the slow one has this part of its times above all of the fast one's."""
    fast = [(10 + number % 97) / 1000 for number in range(ENOUGH)]
    slow = [value + (1 if number < part * ENOUGH else 0) for number, value in enumerate(fast)]
    return binned(slow), binned(fast)


def test_all_is_kept_where_all_is_measured():
    assert judged().worst is Standing.KEPT


@pytest.mark.parametrize(
    ("found", "standing"),
    [
        ({}, Standing.UNMEASURED),
        ({ProbeKind.ACROSS: finding(ProbeKind.ACROSS, alike())}, Standing.UNMEASURED),
        (findings(across=((), ())), Standing.UNMEASURED),
        (findings(across=alike(1_999)), Standing.FEW),
        (findings(control=apart(1_999)), Standing.FEW),
        (findings(control=alike()), Standing.BLIND),
        (findings(across=apart(), control=alike()), Standing.BROKEN),
        (findings(across=apart(20)), Standing.BROKEN),
        (findings(cached_tokens=1), Standing.BROKEN),
        (findings(across=shifted(0.08)), Standing.UNPROVEN),
        (findings(at=NOW - timedelta(days=2)), Standing.STALE),
    ],
)
def test_a_cache_stands_as_its_probes_and_their_control_say(found, standing):
    assert judged(found=found).cache is standing


def test_the_bound_that_is_not_proven_holds_both_answers():
    told = findings(across=shifted(0.08))[ProbeKind.ACROSS].separation
    assert told is not None
    assert told.low <= AUC_LIMIT < told.high


def test_memory_lost_within_the_guarantee_is_a_broken_promise_however_old():
    assert judged(Reading(breaches=1), seen_at=NOW - timedelta(days=1)).memory is Standing.BROKEN


@pytest.mark.parametrize(("gap", "standing"), [(99.0, Standing.KEPT), (100.0, Standing.KEPT), (101.0, Standing.BROKEN)])
def test_a_gap_is_held_against_its_bound(gap, standing):
    assert judged(Reading(gap_units=gap, bound_units=100.0)).turns is standing


@pytest.mark.parametrize(
    ("seen_at", "standing"), [(None, Standing.UNMEASURED), (NOW - timedelta(minutes=4), Standing.STALE)]
)
def test_without_a_recent_word_nothing_is_kept(seen_at, standing):
    found = judged(seen_at=seen_at)
    assert (found.memory, found.turns, found.worst) == (standing, standing, standing)


def test_what_is_worst_is_said_first():
    assert Judgement(Standing.STALE, Standing.BROKEN, Standing.BLIND).worst is Standing.BROKEN
    assert Judgement(Standing.KEPT, Standing.UNMEASURED, Standing.FEW).worst is Standing.FEW


def test_who_is_alone_needs_no_probe():
    assert judge(Reading(), NOW, {}, now=NOW, is_alone=True).worst is Standing.KEPT
