"""A tenant with a few changes, and what somebody does to their rows who has the owner's password."""

import psycopg
from django_fixtures import DATABASE, Personas

from stack.postgres import OWNER_ROLE, Postgres
from tenants import services
from tenants.actor import member_actor


def some_changes(personas: Personas) -> None:
    """Have alice make three keys."""
    alice = member_actor(personas.alice, "acme")
    for number in range(3):
        services.issue_key(actor=alice, name=f"key {number} – ünïcode")


def tamper(postgres: Postgres, *statements: str) -> None:
    """Lift the trigger and change rows behind the product."""
    with psycopg.connect(postgres.url(OWNER_ROLE, DATABASE)) as owner:
        owner.execute("SET pagoda.platform = 'on'")
        owner.execute("ALTER TABLE tenants_auditevent DISABLE TRIGGER append_only")
        for statement in statements:
            owner.execute(statement)
        owner.execute("ALTER TABLE tenants_auditevent ENABLE TRIGGER append_only")
