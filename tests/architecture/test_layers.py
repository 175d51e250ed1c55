"""Nothing that is written down as a test is left out of ``make test``."""

from pathlib import Path

from stack.checks import LAYERS

TESTS = Path(__file__).resolve().parents[1]
APART = {"gpu"}  # make gpu


def test_every_folder_of_tests_is_in_a_layer() -> None:
    run = {argument for layer in LAYERS for argument in layer.argv}
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}
    assert {folder for folder in folders - APART if f"tests/{folder}" not in run} == set()
