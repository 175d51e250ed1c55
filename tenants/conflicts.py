"""A constraint of the database that lost a race, said as a sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.db import IntegrityError

from tenants.errors import Conflict


@contextmanager
def refusing(constraint: str, message: str) -> Iterator[None]:
    """Turn a violation of ``constraint`` in this block into a :class:`Conflict`; put it around the transaction.

    Checking first would leave a window between the check and the write; the constraint has none.
    """
    try:
        yield
    except IntegrityError as error:
        cause = error.__cause__
        if isinstance(cause, psycopg.Error) and cause.diag.constraint_name == constraint:
            raise Conflict(message) from error
        raise
