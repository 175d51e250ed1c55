"""Make the roles and the database where they are missing, then migrate: ``python -m stack.database``.

The owner's connection (``DATABASE_OWNER_URL``) is used for this and for nothing else.
"""

import os

import psycopg
from psycopg import sql

from stack.home import Home, StackError
from stack.postgres import APP_ROLE, Postgres
from stack.services import DATABASE


def main() -> None:
    """Prepare the database that the environment names."""
    home = Home.open()
    if (home.postgres_dir / "PG_VERSION").exists() and str(home.ports.postgres) in os.environ["DATABASE_OWNER_URL"]:
        Postgres(home.postgres_dir, home.ports.postgres, home.root / "logs" / "postgres.log").ensure_database(DATABASE)
    else:
        _ensure_app_role(os.environ["DATABASE_OWNER_URL"], home.secret("app_role_password"))
    _migrate()


def _ensure_app_role(owner_url: str, password: str) -> None:
    try:
        with psycopg.connect(owner_url, autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [APP_ROLE]).fetchone():
                return
            connection.execute(
                sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD {}").format(
                    sql.Identifier(APP_ROLE), sql.Literal(password)
                )
            )
    except psycopg.Error as error:
        raise StackError(
            f"Role {APP_ROLE} could not be made in the database of DATABASE_URL ({error}). Make it yourself and set "
            "DATABASE_URL to its connection and DATABASE_OWNER_URL to the owner's."
        ) from error


def _migrate() -> None:
    import django  # noqa: PLC0415 - Django reads the environment when it is set up
    from django.core.management import call_command  # noqa: PLC0415

    django.setup()
    call_command("migrate", database="owner", interactive=False, verbosity=1)


if __name__ == "__main__":
    main()
