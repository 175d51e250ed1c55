"""What every fault test shares."""

import pytest
from books import Books
from running_stack import RunningStack


@pytest.fixture
def books(product: RunningStack) -> Books:
    """The invariants of the running product."""
    return Books(product)
