"""The API as a tenant's program uses it: keys, uploads over a bad line, deployments and what becomes of them."""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import httpx
from running_stack import wait_for

_TIMEOUT_S = 60.0
_CHUNK_BYTES = 64 * 1024


class Person:
    """Somebody who signs in, and calls the API as a browser's page would."""

    def __init__(self, console_url: str, email: str, password: str) -> None:
        self._client = httpx.Client(base_url=console_url, timeout=_TIMEOUT_S, trust_env=False)
        self._client.get("/account/login/").raise_for_status()
        form = {"login": email, "password": password, "csrfmiddlewaretoken": self._client.cookies["pagoda_csrf"]}
        self._client.post("/account/login/", data=form)

    def __enter__(self) -> "Person":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def do(self, method: str, path: str, **body: Any) -> Any:
        """Make one call that goes well, and return what it answers."""
        crumbs = {"X-CSRFToken": self._client.cookies["pagoda_csrf"]}
        answer = self._client.request(method, f"/api/v1/{path}", json=body or None, headers=crumbs)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None


def make_key(details: dict[str, str], scopes: list[str]) -> str:
    """Sign in as the tenant's owner, make a key by the API, and return its text."""
    with Person(details["console_url"], details["user_email"], details["user_password"]) as person:
        return str(person.do("POST", "keys", name="journey", scopes=scopes)["text"])


class Owner:
    """Calls the API with a key."""

    def __init__(self, api_url: str, key: str) -> None:
        self._client = httpx.Client(
            base_url=api_url, headers={"Authorization": f"Bearer {key}"}, timeout=_TIMEOUT_S, trust_env=False
        )

    def __enter__(self) -> "Owner":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def ask(self, method: str, path: str, **body: Any) -> httpx.Response:
        """Make one call, whatever comes of it."""
        return self._client.request(method, path, json=body or None)

    def do(self, method: str, path: str, **body: Any) -> Any:
        """Make one call that goes well, and return what it answers."""
        answer = self.ask(method, path, **body)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def get(self, path: str) -> Any:
        """Read something."""
        return self.do("GET", path)


class LineCut(Exception):
    """The connection broke."""


class BadLine:
    """A line to the store that breaks each time so many bytes in all have gone over it."""

    def __init__(self, break_after_bytes: Iterable[int]) -> None:
        self._marks = deque(sorted(break_after_bytes))
        self._gone_bytes = 0
        self.cuts = 0

    def carry(self, piece: bytes) -> Iterator[bytes]:
        """Yield ``piece``, or its beginning until the line breaks."""
        breaks = bool(self._marks) and self._marks[0] < self._gone_bytes + len(piece)
        passing = piece[: self._marks.popleft() - self._gone_bytes] if breaks else piece
        self._gone_bytes += len(passing)
        for begin in range(0, len(passing), _CHUNK_BYTES):
            yield passing[begin : begin + _CHUNK_BYTES]
        if breaks:
            self.cuts += 1
            raise LineCut


@dataclass
class Upload:
    """An upload of a folder's files that goes on after every cut with what has not arrived."""

    owner: Owner
    model: str
    folder: Path
    line: BadLine
    store_url: str
    version_id: str = ""
    sends: Counter[tuple[str, int]] = field(default_factory=Counter)

    def run(self) -> None:
        """Bring the version whole."""
        files = [{"name": path.name, "size_bytes": path.stat().st_size} for path in sorted(self.folder.iterdir())]
        begun = self.owner.do("POST", f"models/{self.model}/uploads", files=files)
        self.version_id = begun["version_id"]
        while not self._send_missing(begun["part_bytes"]):
            pass
        self.owner.do("POST", f"uploads/{self.version_id}/complete")

    def _send_missing(self, part_bytes: int) -> bool:
        """Send what has not arrived; say whether the line held."""
        try:
            for name, number in self._missing():
                self._send(name, number, part_bytes)
        except LineCut:
            return False
        return True

    def _missing(self) -> list[tuple[str, int]]:
        upload = self.owner.get(f"uploads/{self.version_id}")
        return [
            (file["name"], number)
            for file in upload["files"]
            for number in range(1, file["parts"] + 1)
            if number not in [part["number"] for part in file["arrived"]]
        ]

    def _send(self, name: str, number: int, part_bytes: int) -> None:
        with (self.folder / name).open("rb") as file:
            file.seek((number - 1) * part_bytes)
            piece = file.read(part_bytes)
        target = self.owner.do(
            "POST", f"uploads/{self.version_id}/parts",
            file=name, number=number, size_bytes=len(piece), sha256=hashlib.sha256(piece).hexdigest(),
        )  # fmt: skip
        assert target["url"].startswith(self.store_url), "a part goes to the store itself"
        self.sends[name, number] += 1
        lines = {**target["headers"], "Content-Length": str(len(piece))}
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as store:
            answer = store.request(target["method"], target["url"], headers=lines, content=self.line.carry(piece))
        assert answer.is_success, answer.text


class Change(NamedTuple):
    """A replica's change of state."""

    replica_id: str
    old: str
    new: str


class Deployment:
    """A deployment that its owner watches."""

    def __init__(self, owner: Owner, deployment_id: str) -> None:
        self._owner = owner
        self.id = deployment_id
        self._path = f"deployments/{deployment_id}"

    def rest(self, **after_s: int) -> None:
        """Change how it steps down."""
        revision = self._owner.get(self._path)["revision"]
        self._owner.do("PATCH", self._path, revision=revision, idle=after_s)

    def stands(self, standing: str) -> None:
        """Wait until it stands so."""
        wait_for(lambda: self._owner.get(self._path)["standing"] == standing, f"a deployment that stands {standing}")

    def changes(self) -> list[Change]:
        """Return what its replicas did so far, oldest first."""
        events = self._owner.get(f"{self._path}/events")["data"]
        return [Change(e["replica_id"], e["old"], e["new"]) for e in reversed(events) if e["kind"] == "replica"]

    def changes_until(self, new: str, *, after: int) -> list[Change]:
        """Return its replicas' changes after the first ``after``, once the last of them leads to ``new``."""

        def told() -> list[Change]:
            changes = self.changes()[after:]
            return changes if changes and changes[-1].new == new else []

        found: list[Change] = wait_for(told, f"a replica that became {new}")
        return found

    def starts(self) -> Counter[str]:
        """Return how many starts were measured from each tier."""
        return Counter({cost["tier"]: cost["samples"] for cost in self.costs()})

    def costs(self) -> list[dict[str, Any]]:
        """Return what starts took."""
        found: list[dict[str, Any]] = self._owner.get(f"{self._path}/costs")["data"]
        return found


def follow_the_checklist(owner: Owner, version_id: str) -> dict[str, Any]:
    """Read the version until it is ready; from one look to the next no line goes back."""
    order = ["pending", "running", "passed"]
    seen = dict[str, str]()

    def ready() -> dict[str, Any] | None:
        version: dict[str, Any] = owner.get(f"versions/{version_id}")
        for check in version["checks"]:
            now, before = check["state"], seen.get(check["name"], "pending")
            assert now in order[order.index(before) :], f"was {before}: {check}"
            seen[check["name"]] = now
        return version if version["state"] == "ready" else None

    version: dict[str, Any] = wait_for(ready, "a validated version", deadline_s=300)
    assert seen
    assert set(seen.values()) == {"passed"}
    return version
