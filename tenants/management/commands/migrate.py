"""``manage.py migrate``, as the owner."""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands.migrate import Command as DjangoCommand
from django.db import connections


class Command(DjangoCommand):
    """Django's own command, with the alias ``owner`` as its default: the application's role may not make tables."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Take Django's arguments."""
        super().add_arguments(parser)
        parser.set_defaults(database="owner")

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrate."""
        if options["database"] not in connections:
            raise CommandError("Set DATABASE_OWNER_URL to the role that owns the tables, then migrate.")
        super().handle(*args, **options)
