"""The records of a request as replica and gateway write them, for tests."""

from itertools import count

from dataplane.contracts.ids import Kind, encode
from dataplane.contracts.usage import Outcome, RecordKind, Source, UsageRecord

AT_MS = 1_790_000_000_000
"""2026-09-21 14:13:20 UTC."""
_numbers = count(1)


def request_id() -> str:
    """Return an id that no other test uses."""
    return encode(Kind.REQUEST, AT_MS, next(_numbers))


class Life:
    """Writes the records of one request of ``tenant_id``."""

    def __init__(self, tenant_id: str, **fields: object) -> None:
        self.request_id = request_id()
        self.fields: dict[str, object] = {
            "tenant_id": tenant_id, "deployment_id": "dep_1", "version_id": "ver_1", "key_id": "key_1",
            "prompt_tokens": 7, "at_ms": AT_MS,
        } | fields  # fmt: skip

    def record(self, source: Source, kind: RecordKind, sequence: int, attempt: int, **fields: object) -> UsageRecord:
        values = {
            "request_id": self.request_id, "attempt": attempt, "source": source, "sequence": sequence, "kind": kind,
            "replica_id": f"rep_{attempt}",
        }  # fmt: skip
        return UsageRecord(**(values | self.fields | fields))  # type: ignore[arg-type]

    def admit(self, attempt: int = 0, **fields: object) -> UsageRecord:
        return self.record(Source.REPLICA, RecordKind.ADMIT, 0, attempt, **fields)

    def progress(self, tokens: int, sequence: int = 1, attempt: int = 0, **fields: object) -> UsageRecord:
        return self.record(Source.REPLICA, RecordKind.PROGRESS, sequence, attempt, completion_tokens=tokens, **fields)

    def final(self, tokens: int, outcome: Outcome = Outcome.STOP, attempt: int = 0, **fields: object) -> UsageRecord:
        values = {"completion_tokens": tokens, "outcome": outcome}
        return self.record(Source.REPLICA, RecordKind.FINAL, 9, attempt, **(values | fields))

    def closed(self, tokens: int, outcome: Outcome = Outcome.STOP, attempt: int = 0, **fields: object) -> UsageRecord:
        values = {
            "completion_tokens": tokens, "outcome": outcome, "last_attempt": outcome is not Outcome.REDISPATCHED,
            "prompt_tokens": 0,
        }  # fmt: skip
        return self.record(Source.GATEWAY, RecordKind.CLOSED, 0, attempt, **(values | fields))

    def refused(self, error_code: str = "requests_per_minute") -> UsageRecord:
        return self.closed(0, Outcome.REFUSED, replica_id="", version_id="", error_code=error_code)

    def whole(self, tokens: int = 10) -> list[UsageRecord]:
        return [self.admit(), self.progress(tokens // 2), self.final(tokens), self.closed(tokens)]
