"""What the application's role is granted: rows, never tables. Granted after each ``migrate``: no table is forgotten."""

from typing import Any

from django.conf import settings
from django.db import connections
from psycopg import sql

from tenants.rls import APPEND_ONLY_TRIGGER

_TABLES = """
    SELECT c.relname, EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = %s)
    FROM pg_class c
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname <> 'django_migrations'
"""


def grant_rows(using: str, **_: Any) -> None:
    """Let the role of the alias ``default`` read and write rows; those of append-only tables it may only add."""
    if using != "owner":
        return
    role = sql.Identifier(settings.DATABASES["default"]["USER"])
    with connections[using].cursor() as cursor:
        cursor.execute(sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role))
        cursor.execute(sql.SQL("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {}").format(role))
        cursor.execute(sql.SQL("GRANT SELECT ON django_migrations TO {}").format(role))
        cursor.execute(_TABLES, [APPEND_ONLY_TRIGGER])
        for table, append_only in cursor.fetchall():
            rights = sql.SQL("SELECT, INSERT" if append_only else "SELECT, INSERT, UPDATE, DELETE")
            cursor.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(sql.Identifier(table), role))
            cursor.execute(sql.SQL("GRANT {} ON {} TO {}").format(rights, sql.Identifier(table), role))
