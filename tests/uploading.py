"""The client's side of an upload, against either store."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import httpx

from controlplane.registry import uploads
from controlplane.registry.models import ModelVersion
from controlplane.registry.parts import FilePlan
from controlplane.registry.stores import CHECKSUM_HEADER, Store, Target, tickets
from controlplane.registry.stores.local import LocalStore
from controlplane.registry.uploads import Upload
from tenants.actor import Actor

PART_BYTES = 1000
FILES = {"config.json": json.dumps({"a": 1}).encode(), "model.safetensors": bytes(range(256)) * 10}
"""What most tests upload: with parts of 1,000 bytes these are one part and three."""


def plans(files: Mapping[str, bytes] = FILES) -> list[FilePlan]:
    return [FilePlan(name, len(data)) for name, data in files.items()]


def begin(actor: Actor, store: Store, files: Mapping[str, bytes] = FILES, model: str = "tiny") -> Upload:
    return uploads.begin_upload(actor=actor, model=model, files=plans(files), store=store)


def part_of(data: bytes, number: int, part_bytes: int = PART_BYTES) -> bytes:
    return data[(number - 1) * part_bytes : number * part_bytes]


def announce(actor: Actor, store: Store, upload: Upload, name: str, number: int, piece: bytes) -> Target:
    return uploads.announce_part(
        actor=actor, version_id=upload.version.id, file=name, number=number, size_bytes=len(piece),
        sha256=hashlib.sha256(piece).hexdigest(), store=store,
    )  # fmt: skip


def send(target: Target, piece: bytes, store: Store) -> None:
    """Send a part where it belongs; a refusal is an exception."""
    if isinstance(store, LocalStore):
        url = urlsplit(target.url)
        ticket = tickets.admit(
            path=url.path, query=url.query, checksum=target.headers[CHECKSUM_HEADER], size_bytes=len(piece)
        )
        incoming = store.receive(ticket.key, ticket.part)
        try:
            incoming.write(piece)
            incoming.keep()
        finally:
            incoming.close()
        return
    with httpx.Client(trust_env=False) as client:
        client.request(target.method, target.url, headers=dict(target.headers), content=piece).raise_for_status()


def send_parts(
    actor: Actor,
    store: Store,
    upload: Upload,
    files: Mapping[str, bytes] = FILES,
    only: Iterable[tuple[str, int]] | None = None,
) -> int:
    """Send all parts, or only some; return how many."""
    wanted = list(only) if only is not None else [
        (file.name, number) for file in upload.files for number in range(1, file.parts + 1)
    ]  # fmt: skip
    for name, number in wanted:
        piece = part_of(files[name], number, upload.part_bytes)
        send(announce(actor, store, upload, name, number, piece), piece, store)
    return len(wanted)


def upload_all(actor: Actor, store: Store, files: Mapping[str, bytes] = FILES, model: str = "tiny") -> ModelVersion:
    """Upload a version to its end; return it VALIDATING."""
    upload = begin(actor, store, files, model)
    send_parts(actor, store, upload, files)
    return uploads.complete_upload(actor=actor, version_id=upload.version.id, store=store)
