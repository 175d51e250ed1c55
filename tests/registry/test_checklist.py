"""How the inspector's checks become the lines that people see."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.registry.validation.checklist import INSPECTED, LINES, line_of, standings
from dataplane.contracts.verdict import CHECKS, Check, CheckState

outcomes = st.lists(st.sampled_from(CheckState), min_size=len(CHECKS), max_size=len(CHECKS))


def checks_of(states: list[CheckState]) -> list[Check]:
    return [
        Check(name, state, reason=f"{name} is bad" if state is CheckState.FAILED else "")
        for name, state in zip(CHECKS, states, strict=True)
    ]


def test_every_check_of_the_inspector_has_exactly_one_line():
    assert sorted(check for line in INSPECTED for check in line.checks) == sorted(CHECKS)
    assert all(line_of(check) in INSPECTED for check in CHECKS)
    assert line_of("surprise") is None
    assert len({line.name for line in LINES}) == len(LINES)


@given(outcomes)
def test_a_line_passes_when_all_of_its_checks_do_and_fails_with_the_first_that_does(states):
    found = {standing.line.name: standing for standing in standings(checks_of(states))}
    by_name = dict(zip(CHECKS, states, strict=True))
    for line in INSPECTED:
        outcome = [by_name[check] for check in line.checks]
        standing = found[line.name]
        assert standing.over
        assert (standing.state is CheckState.PASSED) == all(state is CheckState.PASSED for state in outcome)
        assert (standing.state is CheckState.FAILED) == (CheckState.FAILED in outcome)
        if standing.state is CheckState.FAILED:
            assert standing.reason == f"{line.checks[outcome.index(CheckState.FAILED)]} is bad"


@given(outcomes, st.integers(0, len(CHECKS)))
def test_a_line_is_over_no_earlier_than_its_last_check_or_its_first_fault(states, seen):
    checks = checks_of(states)[:seen]
    ended = {check.name: check.state for check in checks}
    for standing in standings(checks):
        complete = all(name in ended for name in standing.line.checks)
        failed = any(ended.get(name) is CheckState.FAILED for name in standing.line.checks)
        assert standing.over == (complete or failed)
