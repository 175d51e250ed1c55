"""Django against the run's real PostgreSQL: migrated once by the owner, used as the application's role.

``db`` rolls a test back at its end. ``committed`` lets threads and processes see what a test writes, and empties the
tables afterwards. ``personas`` gives the people of every story. A test that asks for none of them starts no server.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from allauth.account.models import EmailAddress
from django.conf import settings
from django.core.management import call_command
from django.db import connections, transaction
from psycopg import sql

from stack.postgres import APP_ROLE, OWNER_ROLE, Postgres
from stack.redis import Redis
from tenants.actor import acting_as, system_actor
from tenants.models import Member, Tenant, User
from tenants.roles import Role

DATABASE = "pagoda_test"
PASSWORD = "correct horse battery staple"

_FIXED_TABLES = ("django_migrations", "django_content_type", "auth_permission")


@pytest.fixture(scope="session")
def django_db_setup(postgres: Postgres, django_db_blocker: Any) -> Iterator[None]:
    """Make the database, migrate it as the owner, and point the application at it as a role that owns nothing."""
    postgres.ensure_database(DATABASE)
    for alias, role in (("default", APP_ROLE), ("owner", OWNER_ROLE)):
        parts = psycopg.conninfo.conninfo_to_dict(postgres.url(role, DATABASE))
        connections[alias].settings_dict.update(
            NAME=parts["dbname"], USER=role, PASSWORD=parts["password"], HOST=parts["host"], PORT=str(parts["port"])
        )
        # Threads of a test open and close their own connections; a pool would keep some over the server's end.
        connections[alias].settings_dict["OPTIONS"].pop("pool", None)
    with django_db_blocker.unblock():
        call_command("migrate", verbosity=0)
        connections["owner"].close()
    yield
    with django_db_blocker.unblock():
        connections.close_all()


def process_environment(postgres: Postgres, redis_url: str) -> dict[str, str]:
    """Return the environment of a process of the product that shares the tests' database and secrets."""
    return {
        "PATH": os.environ["PATH"],
        **settings.TEST_ENVIRONMENT,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "DATABASE_URL": postgres.url(APP_ROLE, DATABASE),
        "DATABASE_OWNER_URL": postgres.url(OWNER_ROLE, DATABASE),
        "REDIS_URL": redis_url,
    }


@contextmanager
def undone() -> Iterator[None]:
    """A transaction that is undone at its end, and in which services open their own as in a test's."""
    atomic = transaction.atomic()
    atomic._from_testcase = True
    with atomic:
        yield
        transaction.set_rollback(True)


@pytest.fixture
def committed(postgres: Postgres, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Real commits, for races and other processes. Whatever was written is gone after the test."""
    with django_db_blocker.unblock():
        yield
        connections["default"].close()
    with psycopg.connect(postgres.url(OWNER_ROLE, DATABASE), autocommit=True) as owner:
        names = [name for (name,) in owner.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        tables = [sql.Identifier(name) for name in names if name not in _FIXED_TABLES]
        owner.execute("SET pagoda.platform = 'on'")
        exists = [sql.SQL("SELECT {} WHERE EXISTS (TABLE {})").format(sql.Literal(t.as_string()), t) for t in tables]
        filled = [sql.SQL(name) for (name,) in owner.execute(sql.SQL(" UNION ALL ").join(exists))]
        if filled:
            owner.execute(sql.SQL("TRUNCATE {} CASCADE").format(sql.SQL(", ").join(filled)))


@pytest.fixture
def django_redis(redis_server: Redis, settings: Any) -> Redis:
    """Django's cache and Celery's broker on the run's Redis."""
    settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": redis_server.url}}
    settings.REDIS_URL = settings.CELERY_BROKER_URL = redis_server.url
    return redis_server


@dataclass(frozen=True)
class Personas:
    """The people of every story, in their places. All sign in with :data:`PASSWORD`."""

    acme: Tenant
    evil: Tenant
    alice: User
    bob: User
    carol: User
    bill: User
    mallory: User
    root: User


@pytest.fixture
def personas(request: pytest.FixtureRequest) -> Personas:
    """Tenants acme and evil with their members, and root. In a test with ``committed`` they are committed."""
    if "committed" not in request.fixturenames:
        request.getfixturevalue("db")
    return make_personas()


def make_personas() -> Personas:
    """Write the personas in one transaction of the platform."""
    people = {
        name: User.objects.create_user(f"{name}@{'evil' if name == 'mallory' else 'acme'}.example", PASSWORD, name=name)
        for name in ("alice", "bob", "carol", "bill", "mallory")
    }
    root = User.objects.create_user("root@pagoda.example", PASSWORD, name="root", is_platform_admin=True)
    EmailAddress.objects.bulk_create(
        EmailAddress(user=user, email=user.email, verified=True, primary=True) for user in (*people.values(), root)
    )
    roles = {"alice": Role.OWNER, "bob": Role.DEVELOPER, "carol": Role.VIEWER, "bill": Role.BILLING}
    with acting_as(system_actor("tests")):
        acme = Tenant.objects.create(slug="acme", name="Acme")
        evil = Tenant.objects.create(slug="evil", name="Evil")
        Member.objects.bulk_create(Member(tenant=acme, user=people[name], role=role) for name, role in roles.items())
        Member.objects.create(tenant=evil, user=people["mallory"], role=Role.OWNER)
    return Personas(acme=acme, evil=evil, root=root, **people)
