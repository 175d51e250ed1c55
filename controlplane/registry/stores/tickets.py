"""Leave to send one part to the local store: an address with a signature, as an object store presigns it.

Who asks for the address is checked when it is made. The signature says the rest, so receiving a part asks no database,
and refuses before the first byte.
"""

import hmac
import re
import time
from base64 import b64decode
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

from django.utils.crypto import salted_hmac

from controlplane.registry.stores import CHECKSUM_HEADER, Part, Target

_PATH = re.compile(r"/api/v1/uploads/(ver_[0-9a-z]{26})/files/([A-Za-z0-9_][A-Za-z0-9._-]*)/parts/([1-9][0-9]{0,4})")
_SALT = "controlplane.registry.stores.tickets"


class TicketRefused(Exception):
    """What was shown admits nothing; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What may be sent: one part of the upload ``key``, until ``expires_at_s`` (Unix seconds)."""

    key: str
    part: Part
    expires_at_s: int


def issue(key: str, part: Part, *, expires_s: int) -> Target:
    """Return the address that takes ``part`` for the next ``expires_s`` seconds."""
    ticket = Ticket(key, part, int(time.time()) + expires_s)
    version_id, _, name = key.partition("/")
    query = urlencode({"expires": ticket.expires_at_s, "signature": _signature(ticket)})
    url = f"/api/v1/uploads/{version_id}/files/{name}/parts/{part.number}?{query}"
    return Target(method="PUT", url=url, headers={CHECKSUM_HEADER: part.checksum})


def admit(*, path: str, query: str, checksum: str, size_bytes: int) -> Ticket:
    """Return what a request may send.

    Args:
        path: the request's path.
        query: its query.
        checksum: its header :data:`~controlplane.registry.stores.CHECKSUM_HEADER`.
        size_bytes: its length.

    Raises:
        TicketRefused: the address was not made here, has expired, or admits another part than this.
    """
    place = _PATH.fullmatch(path)
    asked = parse_qs(query)
    expires, signature = asked.get("expires", [""])[0], asked.get("signature", [""])[0]
    if place is None or not re.fullmatch(r"[0-9]{1,12}", expires):
        raise TicketRefused("Ask for the part's address first: POST /api/v1/uploads/{version_id}/parts.")
    version_id, name, number = place.groups()
    part = Part(number=int(number), size_bytes=size_bytes, sha256=_hex(checksum))
    ticket = Ticket(f"{version_id}/{name}", part, int(expires))
    if not hmac.compare_digest(_signature(ticket).encode(), signature.encode()):
        raise TicketRefused(
            f"This address takes a part of the announced size and digest only: send it with {CHECKSUM_HEADER} and "
            "Content-Length as announced, or announce the part again."
        )
    if ticket.expires_at_s < time.time():
        raise TicketRefused("This address has expired. Ask for a new one.")
    return ticket


def _signature(ticket: Ticket) -> str:
    part = ticket.part
    signed = "\n".join((ticket.key, str(part.number), str(part.size_bytes), part.sha256, str(ticket.expires_at_s)))
    return salted_hmac(_SALT, signed, algorithm="sha256").hexdigest()


def _hex(checksum: str) -> str:
    try:
        return b64decode(checksum, validate=True).hex()
    except ValueError:
        return ""
