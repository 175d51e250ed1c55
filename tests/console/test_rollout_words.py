import pytest
from hypothesis import given
from hypothesis import strategies as st

from console import rollout_words
from console.journal import DEEDS
from controlplane.rollouts import services
from controlplane.rollouts.gates import NEEDS_WAIVER, Outcome
from controlplane.rollouts.plan import Gate, span
from controlplane.rollouts.preflight import Outcome as Fit
from controlplane.rollouts.states import RolloutState


@given(st.integers(0, 10**6))
def test_a_time_reads_as_it_is_written(seconds):
    written = span(seconds)
    assert span(rollout_words.seconds(written) or 0) == written


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1 h 30 min", 5400), ("90s", 90), ("0", 0), (" 2D ", 172_800), ("1h1min1s", 3661),
        ("", None), ("soon", None), ("90", None), ("1 h later", None), ("-1 s", None), ("1.5 h", None),
        ("9999999 s", None),
    ],
)  # fmt: skip
def test_a_time_has_its_units(text, seconds):
    assert rollout_words.seconds(text) == seconds


def test_every_state_gate_outcome_and_fit_has_its_words():
    assert set(rollout_words.STATES) == set(RolloutState)
    assert set(rollout_words.GATES) == set(Gate)
    assert set(rollout_words.OUTCOMES) == {outcome.value for outcome in Outcome}
    assert set(rollout_words.FITS) == {fit.value for fit in Fit}
    assert set(rollout_words.WAIVERS) == set(NEEDS_WAIVER)


def test_every_deed_of_a_rollout_has_its_words():
    verbs = {"create_rollout": "create", "approve_rollout": "approve", "roll_back": "roll_back"}
    commands = [name for name in services.__all__ if name.endswith("_rollout")] + ["roll_back"]
    for name in commands:
        assert f"rollout.{verbs.get(name, name.removesuffix('_rollout'))}" in DEEDS
    assert {"rollouts.freeze", "rollouts.unfreeze", "rollout.advance", "rollout.supersede", "rollout.let_go"} <= set(
        DEEDS
    )


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.0123, "share", "1.23 %"), (412.3, "ms", "412 ms"), (8.254, "ms", "8.25 ms"), (0.0, "blocks", "0 blocks"),
        (12_345.6, "tokens", "12,346 tokens"), (None, "ms", ""),
    ],
)  # fmt: skip
def test_what_was_measured_has_its_unit(value, unit, words):
    assert rollout_words.measured(value, unit) == words
