"""Usage records: what replica and gateway write to their spools, keyed by (request id, attempt, source, sequence).

A replica writes ADMIT before the engine sees the request, PROGRESS every few tokens or seconds, FINAL at the end. The
gateway writes CLOSED once per attempt: what it delivered, or why the attempt never reached a replica.
"""

from enum import StrEnum

import msgspec


class Source(StrEnum):
    """Who wrote a record."""

    REPLICA = "replica"
    GATEWAY = "gateway"


class RecordKind(StrEnum):
    """What a record says."""

    ADMIT = "admit"
    PROGRESS = "progress"
    FINAL = "final"
    CLOSED = "closed"


class Outcome(StrEnum):
    """How an attempt ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    FAILED = "failed"
    REFUSED = "refused"
    REDISPATCHED = "redispatched"


class Phases(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the time of an attempt went, and what it took beside tokens. None: whoever would know did not say.

    The gateway knows ``auth_ms`` (arrival to a known key), ``admission_ms`` (from there to limits held, the caller's
    sending of the body included, so that no time lies between) and ``cold_ms`` (the wait for a READY replica, its slow
    start included; of a second attempt its own). The replica knows the wait in the engine's queue by its cause:
    ``own_budget_ms`` (the tenant's own cap), ``fair_share_ms`` (others' turns), ``memory_ms`` (no blocks, or no slot,
    for anybody); then ``prefill_ms`` (admission to the first token) and ``decode_ms`` (first token to the end),
    ``preempted_ms`` of these two spent preempted; ``preemptions``; the most ``kv_blocks`` held at a time; and
    ``batch_rows``, the mean number of sequences in the steps that computed this one. Its five times add up to the
    request's time in the engine; ``queue_ms`` of the replica's record is the first three. (A request is one sequence:
    more choices than one are refused.)
    """

    auth_ms: int | None = None
    admission_ms: int | None = None
    cold_ms: int | None = None
    own_budget_ms: int | None = None
    fair_share_ms: int | None = None
    memory_ms: int | None = None
    prefill_ms: int | None = None
    decode_ms: int | None = None
    preempted_ms: int | None = None
    preemptions: int | None = None
    kv_blocks: int | None = None
    batch_rows: float | None = None


class UsageRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of a spool. Token counts are cumulative for the attempt; times are wall clock or durations in ms.

    ``sequence`` counts from 0 within (request id, attempt, source). For the gateway ``completion_tokens`` is what was
    delivered to the caller, for a replica what was generated. ``forced``: the caller chose the arm or the version, or
    to wait less than the deployment has callers wait and so found no replica: it says nothing of how weights divide or
    arms serve. ``phases`` come with CLOSED and FINAL.
    """

    request_id: str
    attempt: int
    source: Source
    sequence: int
    kind: RecordKind
    at_ms: int
    tenant_id: str
    deployment_id: str
    version_id: str
    key_id: str = ""
    replica_id: str = ""
    arm: str = "stable"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    outcome: Outcome | None = None
    error_code: str = ""
    last_attempt: bool = True
    stream: bool = False
    endpoint: str = ""
    queue_ms: int | None = None
    ttft_ms: int | None = None
    duration_ms: int | None = None
    forced: bool = False
    phases: Phases | None = None


class UsageBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a shipper posts to ``/internal/usage``."""

    records: tuple[UsageRecord, ...]


class UsageReceipt(msgspec.Struct, frozen=True):
    """The answer: how many records were new. Every record of the batch is durable once this is answered."""

    accepted: int
    duplicates: int
