"""Signatures, against the specification's own words put into hashlib here, and against a receiver's check."""

import base64
import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from controlplane.notifications import signing

SECRET_TEXT = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
UNIX_S = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
"""The example that implementations of the specification are tried with."""


def by_hand(secret: bytes, message_id: str, unix_s: int, body: bytes) -> str:
    """HMAC as RFC 2104 writes it, over ``id.timestamp.body``."""
    key = (secret if len(secret) <= 64 else hashlib.sha256(secret).digest()).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + f"{message_id}.{unix_s}.".encode() + body).digest()
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()
    return "v1," + base64.b64encode(outer).decode()


def is_accepted(headers: dict[str, str], body: bytes, secret_text: str) -> bool:
    """A receiver's check: any of the signatures is the one that its secret makes."""
    secret = base64.b64decode(secret_text.removeprefix("whsec_"))
    expected = by_hand(secret, headers["webhook-id"], int(headers["webhook-timestamp"]), body)
    return any(hmac.compare_digest(each, expected) for each in headers["webhook-signature"].split(" "))


def test_the_known_example_is_signed_as_everybody_signs_it():
    secret = base64.b64decode(SECRET_TEXT.removeprefix("whsec_"))
    signed = signing.signature(secret, message_id=MESSAGE_ID, unix_s=UNIX_S, body=BODY)
    assert signed == by_hand(secret, MESSAGE_ID, UNIX_S, BODY) == SIGNATURE


def test_a_secret_reads_as_receivers_configure_it():
    assert signing.secret_text(base64.b64decode(SECRET_TEXT.removeprefix("whsec_"))) == SECRET_TEXT


@given(st.binary(min_size=24, max_size=80), st.integers(0, 2**40), st.binary(max_size=100))
def test_every_message_is_signed_as_by_hand(secret, unix_s, body):
    assert signing.signature(secret, message_id="msg_1", unix_s=unix_s, body=body) == by_hand(
        secret, "msg_1", unix_s, body
    )


@given(st.lists(st.binary(min_size=24, max_size=64), min_size=1, max_size=3, unique=True), st.binary(max_size=50))
def test_whoever_has_one_of_the_secrets_accepts_and_nobody_accepts_another_body(secrets, body):
    headers = signing.headers(secrets, message_id="msg_1", unix_s=7, body=body)
    for secret in secrets:
        assert is_accepted(headers, body, signing.secret_text(secret))
        assert not is_accepted(headers, body + b" ", signing.secret_text(secret))
        assert not is_accepted(headers | {"webhook-id": "msg_2"}, body, signing.secret_text(secret))
