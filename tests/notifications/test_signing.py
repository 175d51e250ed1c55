"""Signatures, against the specification's own words put into hashlib here, and against a receiver's check."""

import base64

from hypothesis import given
from hypothesis import strategies as st
from webhook_receiver import by_hand, is_accepted

from controlplane.notifications import signing

SECRET_TEXT = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
UNIX_S = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
"""The example that implementations of the specification are tried with."""


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
