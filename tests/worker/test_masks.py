"""The child that says which tokens a grammar allows: it may end at any moment, and nobody but the guilty fails."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dataplane.contracts.errors import Code
from dataplane.contracts.generation import Submit
from dataplane.contracts.sampling import SamplingParams
from dataplane.engine.runner import RowFailure
from dataplane.text import grammar
from dataplane.worker.masks import Grammar, MaskedSequence, Masks
from dataplane.worker.memory import children_of

VOCAB, END = 320, 2
LETTER = {letter: 3 + ord(letter) for letter in "abcdefgh"}
"""The tiny model's tokens 3 to 258 are the bytes."""
RULES = grammar.of_regex("a(b|c)*d")


@pytest.fixture(scope="module")
def masks(tiny_model: Path) -> Iterator[Masks]:
    """One for every test whose sequences it may outlive."""
    found = Masks(tiny_model, VOCAB, [END])
    yield found
    found._close()


@pytest.fixture
def own_masks(tiny_model: Path) -> Iterator[Masks]:
    found = Masks(tiny_model, VOCAB, [END])
    yield found
    found._close()


def submit(rules: str = RULES, tenant_id: str = "acme") -> Submit:
    sampling = SamplingParams(max_tokens=8, grammar=rules)
    return Submit(request_id="req", tenant_id=tenant_id, prompt_token_ids=[1], sampling=sampling)


def compiled(masks: Masks, rules: str = RULES) -> Grammar:
    found = masks.grammar("acme", rules)
    while not found.is_known:
        masks.wait()
    return found


def letters(sequence: MaskedSequence) -> str:
    """What may come next: letters, and ``.`` for the end."""
    mask = sequence.allowed()
    assert isinstance(mask, bytes), mask
    bits = int.from_bytes(mask, "little")
    end = "." if bits >> END & 1 else ""
    return end + "".join(letter for letter, token_id in LETTER.items() if bits >> token_id & 1)


def test_each_sequence_goes_its_own_way(masks: Masks) -> None:
    assert compiled(masks).compiled
    first, second = masks.constrain(submit()), masks.constrain(submit())
    assert letters(first) == letters(second) == "a"
    first.accept(LETTER["a"])
    assert letters(first) == "bcd"
    assert letters(second) == "a"
    first.accept(LETTER["d"])
    assert letters(first) == "."
    assert letters(first) == "."


def test_a_child_that_dies_is_followed_by_one_that_knows_where_each_sequence_is(masks: Masks) -> None:
    compiled(masks)
    first, second = masks.constrain(submit()), masks.constrain(submit())
    for letter in "ab":
        first.allowed()
        first.accept(LETTER[letter])
    assert letters(first) == "bcd"
    assert masks.pid is not None
    os.kill(masks.pid, signal.SIGKILL)
    first.accept(LETTER["d"])
    assert letters(second) == "a"
    assert letters(first) == "."


def test_only_who_leaves_the_grammar_fails(masks: Masks) -> None:
    compiled(masks)
    first, second = masks.constrain(submit()), masks.constrain(submit())
    first.allowed()
    first.accept(LETTER["d"])
    failure = first.allowed()
    assert isinstance(failure, RowFailure)
    assert failure.code is Code.GRAMMAR_FAILED
    assert letters(second) == "a"


def test_a_grammar_that_kills_two_children_fails_and_others_go_on(masks: Masks) -> None:
    compiled(masks)
    neighbour = masks.constrain(submit())
    guilty = masks.grammar("evil", grammar.of_regex("(?:" + "a?" * 20_000 + ")"))
    deaths = 0
    while not guilty.is_known:
        assert masks.pid is not None
        psutil.Process(masks.pid).kill()  # as the kernel does where memory runs out
        deaths += 1
        masks.wait()
    assert guilty.failure
    assert deaths >= 2
    assert letters(neighbour) == "a"


def test_a_wrong_grammar_is_told_apart_from_a_dead_child(masks: Masks) -> None:
    wrong = compiled(masks, grammar.of_regex("(a"))
    assert not wrong.compiled
    assert "unclosed" in wrong.failure


def test_without_a_tokenizer_grammars_fail_and_nothing_else(tmp_path: Path) -> None:
    masks = Masks(tmp_path, VOCAB, [END])
    assert "tokenizer.json" in compiled(masks).failure
    masks.stop()


def test_compiled_grammars_are_kept_by_tenant_and_used_ones_never_forgotten(
    own_masks: Masks, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = own_masks
    monkeypatch.setattr("dataplane.worker.masks._MAX_GRAMMARS", 2)
    used = compiled(masks)
    sequence = masks.constrain(submit())
    assert masks.grammar("acme", RULES) is used
    assert masks.grammar("evil", RULES) is not used
    compiled(masks, grammar.of_choice(["a"]))
    compiled(masks, grammar.of_choice(["b"]))
    assert masks.grammar("acme", RULES) is used
    assert letters(sequence) == "a"
    sequence.close()


def test_it_is_stopped_when_nobody_needs_it_and_started_when_somebody_does(own_masks: Masks) -> None:
    masks = own_masks
    assert masks.pid is None
    compiled(masks)
    assert masks.pid in children_of(os.getpid())  # so that its memory counts as the replica's
    sequence = masks.constrain(submit())
    with pytest.raises(RuntimeError, match="1 sequences"):
        masks.stop()
    sequence.close()
    masks.stop()
    assert masks.pid is None
    assert masks.fileno() == -1
    compiled(masks)
    assert letters(masks.constrain(submit())) == "a"
