"""What every fault test shares."""

from collections.abc import Iterator

import pytest
from books import Books
from running_stack import RunningStack


@pytest.fixture(scope="module")
def books(product: RunningStack) -> Iterator[Books]:
    """The invariants of the running product; after the last test every call must have its row."""
    kept = Books(product)
    yield kept
    kept.require_one_settled_row_a_call()
