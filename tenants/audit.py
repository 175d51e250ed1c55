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


def verify_chain(head: AuditHead) -> Iterator[Fault]:
    """Yield the faults of the chain that ends at ``head``; read within the transaction of an actor that sees it."""
    fields = Link.__slots__
    rows = AuditEvent.objects.filter(tenant=head.tenant_id).order_by("sequence").values_list(*fields, "hash")
    links = ((Link(*row[:-1]), row[-1]) for row in rows.iterator(chunk_size=_CHUNK_ROWS))
    yield from verify(links, head.sequence, head.hash)
