"""The journal of every change: append-only, hash-chained, written in the transaction of the change.

There is one chain per tenant and one for the platform. A chain has one end, so its head row is a lock that every change
of a tenant takes: it is taken last, after all other locks, and held until the commit that follows.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass

from django.db import models, transaction
from django.utils import timezone

from dataplane.contracts.ids import Kind, new_id
from tenants.actor import Actor
from tenants.chain import GENESIS, Fault, Json, Link, link_hash, verify
from tenants.models import AuditEvent, AuditHead, Tenant

_LABEL_MAX_CHARS = 254
_CHUNK_ROWS = 2_000
_FAULT_MAX_CHARS = 300


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from: its id and the caller's address, or the job's id and name."""

    request_id: str = ""
    address: str = ""


_NOWHERE = Origin()
_origin: ContextVar[Origin] = ContextVar("pagoda_origin", default=_NOWHERE)


def current_origin() -> Origin:
    """Return where the request or job at hand comes from."""
    return _origin.get()


@contextmanager
def originating(origin: Origin) -> Iterator[None]:
    """Name the origin of every row written in this block."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


def record(
    *,
    actor: Actor,
    verb: str,
    target: models.Model,
    tenant: Tenant | None = None,
    before: Mapping[str, Json] | None = None,
    after: Mapping[str, Json] | None = None,
) -> AuditEvent:
    """Append a row to the chain of ``tenant`` (by default the actor's, else the platform's).

    Call it last in a service: it locks the end of the chain.

    Args:
        actor: who did it.
        verb: what was done, such as ``key.revoke``.
        target: what it was done to; its kind, id and text are copied.
        tenant: whose chain it belongs to, where a platform actor changes a tenant's things.
        before: the fields that changed, as they were.
        after: the same fields, as they are.

    Raises:
        RuntimeError: no transaction is open, so the row could outlive a change that is rolled back.
    """
    if not transaction.get_connection().in_atomic_block:
        raise RuntimeError("an audit row is written in the transaction of the change")
    tenant = tenant or actor.home
    # Race: two first changes of one tenant. The unique row decides; the loser then waits for the winner's lock.
    AuditHead.objects.get_or_create(tenant=tenant, defaults={"hash": GENESIS})
    head = AuditHead.objects.select_for_update(no_key=True).get(tenant=tenant)
    origin = current_origin()
    link = Link(
        id=new_id(Kind.AUDIT),
        tenant_id=tenant.pk if tenant else None,
        sequence=head.sequence + 1,
        at=timezone.now(),
        actor_kind=actor.kind.value,
        actor_id=actor.id,
        actor_label=actor.label[:_LABEL_MAX_CHARS],
        verb=verb,
        target_kind=target._meta.model_name or "",
        target_id=str(target.pk),
        target_label=str(target)[:_LABEL_MAX_CHARS],
        before=dict(before or {}),
        after=dict(after or {}),
        request_id=origin.request_id,
        origin=origin.address,
        previous_hash=head.hash,
    )
    event = AuditEvent.objects.create(**asdict(link), hash=link_hash(link))
    head.sequence, head.hash = event.sequence, event.hash
    head.save(update_fields=["sequence", "hash"])
    return event


@dataclass(slots=True)
class Walk:
    """How far a chain has been verified by now: up to a row and its hash, with the first fault found."""

    head_id: int
    sequence: int = 0
    hash: str = GENESIS
    fault: str = ""
    is_over: bool = False


def walks() -> list[Walk]:
    """Return a walk for each chain that there is; read within the transaction of an actor that sees them."""
    return [Walk(pk) for pk in AuditHead.objects.order_by("pk").values_list("pk", flat=True)]


def walk_on(walk: Walk, *, rows: int = _CHUNK_ROWS) -> None:
    """Verify the next rows of a chain, and keep at its head how far it holds once its end is reached.

    A chain grows while it is walked: each part goes up to where the head is by then. It costs a transaction each, so
    that a job can say between two that it lives.
    """
    head = AuditHead.objects.get(pk=walk.head_id)
    part = _links(head).filter(sequence__gt=walk.sequence, sequence__lte=head.sequence)
    links = [(Link(*row[:-1]), row[-1]) for row in part.values_list(*Link.__slots__, "hash")[:rows]]
    is_last = len(links) < rows
    end = (head.sequence, head.hash) if is_last else (links[-1][0].sequence, links[-1][1])
    fault = next(verify(links, *end, after=(walk.sequence, walk.hash)), None)
    if fault is not None and not walk.fault:
        walk.fault = f"row {fault.sequence}: {fault.reason}"
    if links:
        walk.sequence, walk.hash = links[-1][0].sequence, links[-1][1]
    if is_last:
        # One statement, so one moment: what a change appends just now has moved the head by then.
        end_now = models.Subquery(AuditHead.objects.filter(pk=head.pk).values("sequence"))
        stray = _links(head).filter(sequence__gt=end_now).first()
        if stray is not None and not walk.fault:
            walk.fault = f"row {stray.sequence}: it stands behind the end that its head names"
        walk.is_over = True
        AuditHead.objects.filter(pk=head.pk).update(
            verified_sequence=walk.sequence, verified_at=timezone.now(), fault=walk.fault[:_FAULT_MAX_CHARS]
        )


def headless() -> list[str | None]:
    """Return the tenants whose rows have no head; None stands for the platform."""
    with_rows = set(AuditEvent.objects.order_by().values_list("tenant_id", flat=True).distinct())
    return list(with_rows - set(AuditHead.objects.values_list("tenant_id", flat=True)))


def verify_chain(head: AuditHead) -> Iterator[Fault]:
    """Yield the faults of the chain that ends at ``head``; read within the transaction of an actor that sees it."""
    rows = _links(head).values_list(*Link.__slots__, "hash")
    links = ((Link(*row[:-1]), row[-1]) for row in rows.iterator(chunk_size=_CHUNK_ROWS))
    yield from verify(links, head.sequence, head.hash)


def _links(head: AuditHead) -> models.QuerySet[AuditEvent]:
    return AuditEvent.objects.filter(tenant=head.tenant_id).order_by("sequence")
