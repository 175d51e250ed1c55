import hashlib
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.registry.stores import CHECKSUM_HEADER, Part, tickets
from controlplane.registry.stores.tickets import TicketRefused

VERSION = "ver_01h2xcejqtf2nbrexx3vqjhp41"
PART = Part(number=3, size_bytes=1000, sha256=hashlib.sha256(b"part").hexdigest())


def shown(part: Part = PART, key: str = f"{VERSION}/model.safetensors", expires_s: int = 60) -> dict[str, object]:
    """What a request to a fresh address shows."""
    target = tickets.issue(key, part, expires_s=expires_s)
    url = urlsplit(target.url)
    checksum = target.headers[CHECKSUM_HEADER]
    return {"path": url.path, "query": url.query, "checksum": checksum, "size_bytes": part.size_bytes}


def test_an_address_admits_its_part():
    ticket = tickets.admit(**shown())
    assert (ticket.key, ticket.part) == (f"{VERSION}/model.safetensors", PART)


@given(number=st.integers(1, 10_000), size_bytes=st.integers(1, 2**24), data=st.binary(max_size=8))
def test_what_is_admitted_is_what_was_announced(number, size_bytes, data):
    part = Part(number, size_bytes, hashlib.sha256(data).hexdigest())
    assert tickets.admit(**shown(part)).part == part


@pytest.mark.parametrize(
    "change",
    [
        {"path": f"/api/v1/uploads/{VERSION}/files/model.safetensors/parts/4"},
        {"path": f"/api/v1/uploads/{VERSION}/files/config.json/parts/3"},
        {"path": f"/api/v1/uploads/{VERSION}/files/../parts/3"},
        {"path": f"/api/v1/uploads/{VERSION}/files/model.safetensors/parts/03"},
        {"size_bytes": 1001},
        {"size_bytes": -1},
        {"checksum": Part(1, 1, hashlib.sha256(b"other").hexdigest()).checksum},
        {"checksum": ""},
        {"checksum": "not base64!"},
        {"query": ""},
        {"query": "expires=9999999999&signature=" + "0" * 64},
        {"query": "expires=soon&signature=é"},
    ],
)
def test_anything_else_is_refused(change):
    with pytest.raises(TicketRefused):
        tickets.admit(**(shown() | change))


def test_a_later_end_cannot_be_written_into_an_address():
    request = shown()
    query = dict(parse_qsl(str(request["query"])))
    request["query"] = urlencode(query | {"expires": str(int(query["expires"]) + 1)})
    with pytest.raises(TicketRefused):
        tickets.admit(**request)


def test_an_old_address_is_refused_by_name():
    with pytest.raises(TicketRefused, match="expired"):
        tickets.admit(**shown(expires_s=-1))


def test_another_secret_admits_nothing(settings):
    request = shown()
    settings.SECRET_KEY = "another secret of the same product"
    with pytest.raises(TicketRefused):
        tickets.admit(**request)
