import pytest

from dataplane.contracts.internal_calls import authorization, is_internal


def test_who_shows_the_secret_is_one_of_ours() -> None:
    assert is_internal(authorization("a secret"), "a secret")


@pytest.mark.parametrize("shown", [None, "", "Bearer", "Bearer ", "a secret", "Bearer a secre", "Bearer a secret "])
def test_nobody_else_is(shown: str | None) -> None:
    assert not is_internal(shown, "a secret")
