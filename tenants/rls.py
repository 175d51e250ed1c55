"""Row-level security, same-tenant references and append-only tables, as migration operations.

The application's role owns nothing, so it cannot lift what is set up here. A row is visible when its tenant is the one
that :func:`tenants.actor.acting_as` put into the transaction, or when the transaction belongs to the platform.
"""

from collections.abc import Sequence

from django.db.migrations.operations import RunSQL
from django.db.migrations.operations.base import Operation

TENANT = "pagoda.tenant"
PLATFORM = "pagoda.platform"
USER = "pagoda.user"
LOOKUP = "pagoda.lookup"
SETTINGS = (TENANT, PLATFORM, USER, LOOKUP)
"""The transaction-local settings that policies read. Unset or empty, they match no row."""

APPEND_ONLY_TRIGGER = "append_only"


def is_setting(column: str, setting: str) -> str:
    """Return SQL that is true where ``column`` equals ``setting``, and never where the setting is unset or empty."""
    return f"{column} = nullif(current_setting('{setting}', true), '')"


class _Statements(RunSQL):
    """Statements made from arguments; a migration writes the arguments."""

    deconstruct = Operation.deconstruct

    def __init__(self, forwards: Sequence[str], backwards: Sequence[str]) -> None:
        super().__init__(sql=list(forwards), reverse_sql=list(backwards))


class EnableRowLevelSecurity(_Statements):
    """Bind every role, the owner included, to the rows of the transaction's tenant.

    Args:
        table: the table's name in the database.
        column: the column that holds the tenant's id; None for a table that is the platform's alone.
        also_readable_where: SQL of rows that may be read besides, such as what another tenant has granted.
    """

    def __init__(self, table: str, column: str | None = "tenant_id", *, also_readable_where: str = "") -> None:
        platform = f"current_setting('{PLATFORM}', true) = 'on'"
        rows = platform if column is None else f"{is_setting(column, TENANT)} OR {platform}"
        forwards = [
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY tenant_rows ON {table} USING ({rows}) WITH CHECK ({rows})",
        ]
        backwards = [
            f"DROP POLICY tenant_rows ON {table}",
            f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY",
            f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
        ]
        if also_readable_where:
            forwards.append(f"CREATE POLICY also_readable ON {table} FOR SELECT USING ({also_readable_where})")
            backwards.insert(0, f"DROP POLICY also_readable ON {table}")
        super().__init__(forwards, backwards)


class RequireSameTenant(_Statements):
    """Refuse a child whose tenant is not its parent's.

    Args:
        child: the table that refers.
        column: its column that holds the parent's id.
        parent: the table referred to; both have a column ``tenant_id``.
    """

    def __init__(self, child: str, column: str, parent: str) -> None:
        unique, foreign = f"{parent}_id_tenant", f"{child}_{column}_same_tenant"
        super().__init__(
            [
                f"CREATE UNIQUE INDEX IF NOT EXISTS {unique} ON {parent} (id, tenant_id)",
                f"ALTER TABLE {child} ADD CONSTRAINT {foreign} FOREIGN KEY ({column}, tenant_id)"
                f" REFERENCES {parent} (id, tenant_id) DEFERRABLE INITIALLY DEFERRED",
            ],
            # The index stays: another child may need it.
            [f"ALTER TABLE {child} DROP CONSTRAINT {foreign}"],
        )


class AppendOnly(_Statements):
    """Refuse UPDATE and DELETE on a table to everybody; the application's role is not granted them either."""

    def __init__(self, table: str) -> None:
        super().__init__(
            [
                "CREATE OR REPLACE FUNCTION pagoda_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$"
                " BEGIN RAISE EXCEPTION 'the rows of % are append-only', TG_TABLE_NAME; END $$",
                f"CREATE TRIGGER {APPEND_ONLY_TRIGGER} BEFORE UPDATE OR DELETE ON {table}"
                " FOR EACH ROW EXECUTE FUNCTION pagoda_refuse_change()",
            ],
            [f"DROP TRIGGER {APPEND_ONLY_TRIGGER} ON {table}"],
        )
