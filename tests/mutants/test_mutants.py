"""The known faults can still be put back, and the tests that see them are there. ``make mutants`` runs them."""

import ast

import pytest
from mutants import MUTANTS, REPOSITORY, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_applies_to_the_engine_as_it_is(mutant: Mutant) -> None:
    texts: dict[str, str] = {}
    for edit in mutant.edits:
        text = texts.get(edit.path) or (REPOSITORY / edit.path).read_text()
        texts[edit.path] = edit.applied(text)
        assert texts[edit.path] != text
    for text in texts.values():
        ast.parse(text)
    tests = ast.parse((REPOSITORY / mutant.node.partition("::")[0]).read_text())
    assert mutant.test in {each.name for each in tests.body if isinstance(each, ast.FunctionDef)}


def test_every_fault_is_another_one() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len({mutant.edits for mutant in MUTANTS}) == len(MUTANTS)
