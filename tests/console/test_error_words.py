import pytest

from console.error_words import meaning
from dataplane.contracts.errors import Code


@pytest.mark.parametrize("code", Code)
def test_every_error_says_what_it_is_and_what_to_do(code):
    found = meaning(code.code)
    assert found is not None
    assert found.what.endswith(".")
    assert found.do.endswith((".", "’."))
    assert found.status == code.status


def test_a_code_that_nobody_knows_is_told_as_that_and_none_as_nothing():
    unknown = meaning("made_up")
    assert unknown is not None
    assert unknown.status == 0
    assert meaning("") is None
