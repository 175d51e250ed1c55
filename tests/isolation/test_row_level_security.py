"""The second wall, asked in raw SQL as the application's role: generated from the models, so no table is forgotten."""

from contextlib import suppress

import psycopg
import pytest
from django.apps import apps
from django.db import ProgrammingError, connection, transaction
from world import build

from tenants import rls
from tenants.actor import acting_as, member_actor, system_actor

OPEN_TABLES = {
    "tenants_user": "people belong to no tenant; what they may see follows from their memberships",
}
"""Our own tables without row-level security, each with its reason."""

MODELS = [
    model
    for config in apps.get_app_configs()
    if config.name == "tenants" or config.name.startswith("controlplane")
    for model in config.get_models(include_auto_created=True)
    if model._meta.managed
]
TABLES = [model._meta.db_table for model in MODELS if model._meta.db_table not in OPEN_TABLES]
TENANT_TABLES = {
    model._meta.db_table: "id" if model._meta.db_table == "tenants_tenant" else "tenant_id"
    for model in MODELS
    if model._meta.db_table == "tenants_tenant" or any(field.name == "tenant" for field in model._meta.fields)
}


@pytest.fixture
def world(personas):
    return build(personas)


def rows(statement: str, *params: object) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall()


@pytest.mark.parametrize("table", TABLES)
def test_every_table_of_ours_has_forced_row_level_security(table, db):
    statement = "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = %s::regclass"
    assert rows(statement, table) == [(True, True)], "add EnableRowLevelSecurity to the migration that makes the table"


def test_without_a_tenant_set_raw_sql_returns_no_rows(world):
    with acting_as(system_actor("test")):
        filled = [table for table in TABLES if rows(f"SELECT 1 FROM {table} LIMIT 1")]
    assert {"tenants_tenant", "tenants_apikeysecret", "tenants_auditevent", "tenants_outboxevent"} <= set(filled)
    assert [table for table in filled if rows(f"SELECT 1 FROM {table} LIMIT 1")] == []


def test_an_empty_setting_matches_no_row(world):
    for setting in rls.SETTINGS:
        rows("SELECT set_config(%s, '', true)", setting)
    assert [table for table in TABLES if rows(f"SELECT 1 FROM {table} LIMIT 1")] == []


def test_a_tenant_reads_no_row_of_another(world, personas):
    with acting_as(member_actor(personas.mallory, "evil")):
        for table, column in TENANT_TABLES.items():
            foreign = rows(f"SELECT count(*) FROM {table} WHERE {column} IS DISTINCT FROM %s", personas.evil.id)
            assert foreign == [(0,)], table


def test_a_tenant_changes_no_row_of_another(world, personas):
    with acting_as(member_actor(personas.mallory, "evil")):
        for table, column in TENANT_TABLES.items():
            for statement in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"):
                assert changed(f"{statement} WHERE {column} = %s", personas.acme.id) == 0, statement


def changed(statement: str, *params: object) -> int:
    """Return how many rows a statement changed; none where the role may not even ask, as on append-only tables."""
    with suppress(psycopg.errors.InsufficientPrivilege), transaction.atomic(), connection.cursor() as cursor:
        cursor.cursor.execute(statement, params)  # psycopg's own cursor, for its own errors
        return cursor.rowcount
    return 0


def test_a_tenant_writes_no_row_for_another(world, personas):
    with acting_as(system_actor("test")):
        names = {table: columns(table) for table in TENANT_TABLES}
    with acting_as(member_actor(personas.mallory, "evil")):
        for table, column in TENANT_TABLES.items():
            values = ", ".join("%s" if name == f'"{column}"' else "NULL" for name in names[table])
            insert = f"INSERT INTO {table} ({', '.join(names[table])}) OVERRIDING SYSTEM VALUE VALUES ({values})"
            with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
                rows(f"{insert} RETURNING 1", personas.acme.id)


def columns(table: str) -> list[str]:
    statement = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
    return [f'"{name}"' for (name,) in rows(f"{statement} AND attgenerated = ''", table)]


def test_no_table_may_be_emptied_or_altered_by_the_application(db):
    for statement in ("TRUNCATE tenants_apikey CASCADE", "ALTER TABLE tenants_apikey DISABLE ROW LEVEL SECURITY"):
        with pytest.raises(ProgrammingError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_a_persons_door_shows_memberships_and_their_tenants_only(world, personas):
    from tenants.actor import looking_up

    with looking_up(user_id=personas.bob.id):
        assert rows("SELECT user_id FROM tenants_member") == [(personas.bob.id,)]
        assert rows("SELECT slug FROM tenants_tenant") == [("acme",)]
        assert [table for table in TABLES if rows(f"SELECT 1 FROM {table} LIMIT 1")] == [
            "tenants_tenant",
            "tenants_member",
        ]


def test_a_keys_door_shows_that_key_only(world, personas):
    from tenants.actor import looking_up

    with looking_up(lookup=world["acme_key"].split("_")[2]):
        assert rows("SELECT id FROM tenants_apikey") == [(world["key_id"],)]
        assert rows("SELECT DISTINCT key_id FROM tenants_apikeysecret") == [(world["key_id"],)]
        visible = [table for table in TABLES if rows(f"SELECT 1 FROM {table} LIMIT 1")]
        assert visible == ["tenants_tenant", "tenants_apikey", "tenants_apikeysecret"]
