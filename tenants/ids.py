"""Public ids as primary keys: one name for a thing in URLs, logs, messages and tables."""

from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from dataplane.contracts.ids import Kind, new_id

if TYPE_CHECKING:
    _Text = models.CharField[str, str]
else:
    _Text = models.CharField

ID_MAX_CHARS = 32


class PublicId(_Text):
    """A primary key minted by :mod:`dataplane.contracts.ids`; the database refuses any other form.

    Args:
        kind: what the row is; it becomes the id's prefix.
    """

    def __init__(self, kind: Kind, **kwargs: Any) -> None:
        self.kind = Kind(kind)
        kwargs |= {"primary_key": True, "max_length": ID_MAX_CHARS, "editable": False}
        super().__init__(default=partial(new_id, self.kind), **kwargs)

    def deconstruct(self) -> tuple[str, str, Any, Any]:
        """Describe the field to migrations by its kind alone."""
        name, path, _, kwargs = super().deconstruct()
        for implied in ("default", "primary_key", "max_length", "editable"):
            kwargs.pop(implied, None)
        return name, path, [self.kind.value], kwargs

    def db_check(self, connection: BaseDatabaseWrapper) -> str | None:
        """Return the column's CHECK: the prefix of the kind and a ULID in lower case."""
        column = connection.ops.quote_name(str(self.column))
        return f"{column} ~ '^{self.kind.value}_[0-7][0-9a-hjkmnp-tv-z]{{25}}$'"
