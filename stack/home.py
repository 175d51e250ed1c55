"""The state folder of a stack: paths, ports and secrets, made once and read by every process's environment."""

import hashlib
import json
import os
import pwd
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dataplane import atomic_file

REPOSITORY = Path(__file__).resolve().parent.parent
_DEFAULT_PORTS = {"web": 8000, "gateway": 8001, "fleet": 8002, "postgres": 8003, "redis": 8004}

BUNDLED_MODEL = "smollm2-135m-instruct"

_OURS = ("PAGODA_", "DATABASE_", "REDIS_", "AWS_")
_PASSED_ON = (
    "PAGODA_DEBUG", "PAGODA_PUBLIC_HOSTS", "PAGODA_SIGNUP_OPEN", "PAGODA_SMTP_URL", "PAGODA_EMAIL_FROM",
    "PAGODA_WARM_IDLE_FLOOR", "PAGODA_ASLEEP_MEMORY_MB", "PAGODA_MODEL_DIR", "PAGODA_MODEL_NAME", "PAGODA_PROBE_SHARE",
    "PAGODA_FAILPOINTS", "PAGODA_FAILPOINTS_FILE", "PAGODA_WEBHOOK_ALLOW_PRIVATE",
)  # fmt: skip
"""What a person may set for a stack beside ports, home and servers."""
_OBJECT_STORE = (
    "PAGODA_STORE_URL", "PAGODA_S3_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "AWS_DEFAULT_REGION",
)  # fmt: skip
_PORT_VARIABLES = {f"PAGODA_{name.upper()}_PORT": str(port) for name, port in _DEFAULT_PORTS.items()}
SETTINGS = (*_PASSED_ON, *_OBJECT_STORE, *_PORT_VARIABLES, "DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL")
"""All that a person may set for a stack, its home apart."""

_MODEL_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}[a-z0-9]", re.ASCII)


class StackError(RuntimeError):
    """Something the person at the terminal can mend; the message says what and how."""


def chosen(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that ``environ`` makes; a port is always one."""
    return _PORT_VARIABLES | {name: environ[name] for name in SETTINGS if environ.get(name)}


@dataclass(frozen=True)
class Ports:
    """TCP ports on 127.0.0.1, each set by ``PAGODA_<NAME>_PORT``."""

    web: int
    gateway: int
    fleet: int
    postgres: int
    redis: int

    @classmethod
    def from_environment(cls) -> "Ports":
        """Read the ports.

        Raises:
            StackError: a variable is not a port number, or two are equal.
        """
        numbers: dict[str, int] = {}
        for name, default in _DEFAULT_PORTS.items():
            variable = f"PAGODA_{name.upper()}_PORT"
            text = os.environ.get(variable) or str(default)
            if not text.isdecimal() or not 0 < int(text) < 65536:
                raise StackError(f"{variable}={text!r} is not a port. Set it to a number from 1 to 65535.")
            numbers[name] = int(text)
        if len(set(numbers.values())) < len(numbers):
            raise StackError(f"Two services have the same port: {numbers}. Set the PAGODA_*_PORT variables apart.")
        return cls(**numbers)

    def require_free(self, names: list[str]) -> None:
        """Check that nothing listens on the ports of ``names``.

        Raises:
            StackError: one is taken; names it, and the variable that moves it.
        """
        for name in names:
            port = getattr(self, name)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError as error:
                    raise StackError(
                        f"Port {port} for {name} is taken by another program. Free it, or choose another one: "
                        f"PAGODA_{name.upper()}_PORT=<port> make up"
                    ) from error


@dataclass(frozen=True)
class Home:
    """Where a stack keeps its state: ``PAGODA_HOME``, by default ``var`` in the checkout."""

    root: Path
    ports: Ports
    _secrets: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls) -> "Home":
        """Make the folder and its secrets where missing, and read them."""
        root = Path(os.environ.get("PAGODA_HOME", REPOSITORY / "var")).resolve()
        root.mkdir(parents=True, exist_ok=True)
        for name in ("logs", "run", "store", "spool", "models", "runtime", "versions"):
            (root / name).mkdir(exist_ok=True)
        home = cls(root=root, ports=Ports.from_environment())
        home._secrets.update(home._load_secrets())
        return home

    def _load_secrets(self) -> dict[str, str]:
        """Read the secrets; those that the folder of an earlier version lacks are made."""
        path = self.root / "secrets.json"
        stored: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        made = {
            "PAGODA_SECRET_KEY": secrets.token_urlsafe(48),
            "PAGODA_KEY_PEPPERS": f"1:{secrets.token_hex(32)}",
            "PAGODA_INTERNAL_SECRET": secrets.token_urlsafe(32),
            "PAGODA_CACHE_SALT_SECRET": secrets.token_hex(32),
            "PAGODA_PLAYGROUND_SECRET": secrets.token_hex(32),
            "PAGODA_WEBHOOK_SECRET": secrets.token_hex(32),
            "app_role_password": secrets.token_urlsafe(32),
            "redis_password": secrets.token_urlsafe(32),
            "admin_password": secrets.token_urlsafe(12),
            "user_password": secrets.token_urlsafe(12),
        }
        known = made | stored
        if known != stored:
            atomic_file.write(path, json.dumps(known, indent=2).encode())
        return known

    def described(self) -> dict[str, str]:
        """Return ``up.json``: addresses, sign-ins, key and model of the last start; empty before the first."""
        return self._written("up.json")

    def hosted(self) -> dict[str, str]:
        """Return the model of the last start, its folder and the deployment made of it; empty before the first."""
        return self._written("hosted.json")

    def _written(self, name: str) -> dict[str, str]:
        path = self.root / name
        values: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        return values

    def secret(self, name: str) -> str:
        """Return a secret made with the folder."""
        return self._secrets[name]

    @property
    def model_dir(self) -> Path:
        """The folder of the model to host first: ``PAGODA_MODEL_DIR``, or the bundled one."""
        return Path(os.path.abspath(os.environ.get("PAGODA_MODEL_DIR") or self.root / "models" / BUNDLED_MODEL))

    @property
    def model_name(self) -> str:
        """What applications call the model: ``PAGODA_MODEL_NAME``, or its folder's name made lawful.

        Raises:
            StackError: it is no name, or none can be made of the folder's.
        """
        rule = "A name has 2 to 64 of a-z, 0-9, dot, dash and underscore, and begins and ends with a letter or digit."
        name = os.environ.get("PAGODA_MODEL_NAME", "")
        if name:
            if _MODEL_NAME.fullmatch(name) is None:
                raise StackError(f"PAGODA_MODEL_NAME={name!r} cannot be the name of a model. {rule}")
            return name
        made = re.sub(r"[^a-z0-9._-]+", "-", _repository_name(self.model_dir).lower())[:64].strip("._-")
        if _MODEL_NAME.fullmatch(made) is None:
            raise StackError(f"No name can be made of the folder {self.model_dir}. Set PAGODA_MODEL_NAME. {rule}")
        return made

    @property
    def socket_path(self) -> Path:
        """The supervisor's control socket; short even where the folder's path is long."""
        return self.run_dir / "supervisor.sock"

    @property
    def run_dir(self) -> Path:
        """Sockets. Unix socket paths end at 107 characters, so a deep home gets a folder of its own under /tmp."""
        local = self.root / "run"
        if len(str(local)) <= 50:
            return local
        short = Path("/tmp") / f"pagoda-{os.getuid()}-{self._fingerprint()}"  # noqa: S108 - 0700, owner checked below
        short.mkdir(mode=0o700, exist_ok=True)
        if short.stat().st_uid != os.getuid():
            raise StackError(f"{short} belongs to another user. Remove it, or set PAGODA_HOME to a shorter path.")
        return short

    @property
    def postgres_dir(self) -> Path:
        """The data directory; as root, somewhere that user ``postgres`` may enter."""
        local = self.root / "postgres"
        if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in local.parents):
            return local
        return Path("/var/lib/pagoda") / self._fingerprint() / "postgres"

    def _fingerprint(self) -> str:
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:10]

    @property
    def gateway_url(self) -> str:
        """The gateway without ``/v1``."""
        return f"http://127.0.0.1:{self.ports.gateway}"

    @property
    def fleet_url(self) -> str:
        """The fleet's private HTTP."""
        return f"http://127.0.0.1:{self.ports.fleet}"

    @property
    def console_url(self) -> str:
        """The console, and the API under ``/api/v1``."""
        return f"http://127.0.0.1:{self.ports.web}"

    def object_store(self) -> dict[str, str]:
        """Return where files of models are kept, and the credentials: for the processes that keep or fetch them."""
        return {name: os.environ[name] for name in _OBJECT_STORE if name in os.environ}

    def environment(self, *secret_names: str, **values: str) -> dict[str, str]:
        """Return a process's environment: where things are, the secrets it is given by name, and ``values``.

        Nothing else of ours is passed on, so a process cannot use what it was not given.
        """
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        passed_on = {name: os.environ[name] for name in os.environ if name in _PASSED_ON}
        return {
            **inherited,
            **passed_on,
            "PAGODA_HOME": str(self.root),
            "PAGODA_RUN_DIR": str(self.run_dir),
            "PAGODA_CONTROL_URL": self.console_url,
            "PAGODA_GATEWAY_URL": self.gateway_url,
            "PAGODA_FLEET_URL": self.fleet_url,
            "PAGODA_WEB_PORT": str(self.ports.web),
            "PAGODA_GATEWAY_PORT": str(self.ports.gateway),
            "PAGODA_FLEET_PORT": str(self.ports.fleet),
            "PAGODA_POSTGRES_PORT": str(self.ports.postgres),
            "PAGODA_REDIS_PORT": str(self.ports.redis),
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "PYTHONUNBUFFERED": "1",
            **{name: self.secret(name) for name in secret_names},
            **values,
        }


def _repository_name(folder: Path) -> str:
    """Return the folder's name; a snapshot in the Hugging Face cache is called by a hash, so the repository's."""
    snapshots = folder.parent
    if snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--"):
        return snapshots.parent.name.rsplit("--", 1)[1]
    return folder.name


def require_postgres_account() -> None:
    """Check that root can hand the data directory to user ``postgres``.

    Raises:
        StackError: there is no such user.
    """
    if os.geteuid() != 0:
        return
    try:
        pwd.getpwnam("postgres")
    except KeyError as error:
        raise StackError(
            "As root, PostgreSQL runs as user postgres, and there is none. Install PostgreSQL with your package "
            "manager, run as an ordinary user, or set DATABASE_URL."
        ) from error
