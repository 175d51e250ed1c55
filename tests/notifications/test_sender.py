"""One attempt over real sockets: where it connects, whom it asks for, and how little of an answer it needs."""

import asyncio
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from webhook_receiver import Receiver, receiving

from controlplane.notifications import sender
from controlplane.notifications.endpoints import read
from controlplane.notifications.schedule import Outcome

BODY = b'{"type":"webhook.test"}'


def post(url: str, *, private: bool = True, found: list[str] | None = None, **more: object) -> Outcome:
    """Send to ``url``; its name leads to ``found``, where that is given."""

    async def answer(_host: str, _port: int) -> list[str]:
        return found or []

    if found is not None:
        more["resolve"] = answer
    endpoint = read(url, allow_private=private)
    return asyncio.run(sender.post(endpoint, {"webhook-id": "msg_1"}, BODY, allow_private=private, **more))


def test_the_message_arrives_and_its_receiver_is_called_by_name(receiver: Receiver):
    outcome = post(f"http://hooks.example:{receiver.port}/in?a=1", found=["127.0.0.1"])
    assert (outcome.delivered, outcome.status) == (True, 204)
    (got,) = receiver.received
    assert (got.path, got.body, got.headers["webhook-id"]) == ("/in?a=1", BODY, "msg_1")
    assert got.headers["host"] == f"hooks.example:{receiver.port}"


@pytest.mark.parametrize(
    "found",
    [
        ["127.0.0.1"],
        ["10.0.0.5"],
        ["169.254.169.254"],
        ["100.64.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fd00:ec2::254"],
        ["1.1.1.1", "192.168.0.1"],
        ["192.168.0.1", "1.1.1.1"],
    ],
)
def test_a_name_that_leads_inside_is_refused_before_anything_is_sent(found, receiver: Receiver):
    outcome = post(f"https://hooks.example:{receiver.port}/", private=False, found=found)
    assert not outcome.delivered
    assert "no address of the public internet" in outcome.error
    assert receiver.received == []


def test_a_name_is_asked_for_once_and_the_connection_goes_to_what_was_checked(receiver: Receiver):
    answers = [["127.0.0.1"], ["127.0.0.2"]]

    async def rebinding(_host: str, _port: int) -> list[str]:
        return answers.pop(0)

    assert post(f"http://rebinding.example:{receiver.port}/", resolve=rebinding).delivered
    assert answers == [["127.0.0.2"]]


def test_the_next_address_is_tried_where_one_takes_no_connection(receiver: Receiver):
    assert post(f"http://hooks.example:{receiver.port}/", found=["127.255.255.1", "127.0.0.1"]).delivered
    assert not post(f"http://hooks.example:{receiver.port}/", found=["127.255.255.1"]).delivered
    assert len(receiver.received) == 1


def test_a_redirect_is_not_followed(receiver: Receiver):
    with receiving() as other:
        receiver.status, receiver.headers = 307, {"Location": other.url}
        outcome = post(receiver.url)
    assert (outcome.delivered, outcome.status) == (False, 307)
    assert "redirect" in outcome.error
    assert other.received == []


def test_a_name_without_an_address_says_so():
    assert post("http://hooks.example/", found=[]).error == "The name hooks.example has no address."

    async def unknown(_host: str, _port: int) -> list[str]:
        raise OSError("no such name")

    assert post("http://hooks.example/", resolve=unknown).error == "The name hooks.example has no address."


def test_a_name_server_that_never_answers_ends_with_the_deadline():
    async def silent(_host: str, _port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    assert "did not answer within" in post("http://hooks.example/", resolve=silent, deadline_s=0.05).error


def test_a_receiver_that_dribbles_ends_with_the_deadline(receiver: Receiver):
    over = threading.Event()

    def dribble(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not over.wait(0.01):
            handler.wfile.write(b"x: y\r\n")
            handler.wfile.flush()

    receiver.instead = dribble
    try:
        assert "did not answer within" in post(receiver.url, deadline_s=0.3).error
    finally:
        over.set()


def test_an_endless_head_is_given_up(receiver: Receiver):
    def endless(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
        while True:
            handler.wfile.write(b"y" * 65_536)

    receiver.instead = endless
    outcome = post(receiver.url)
    assert not outcome.delivered
    assert outcome.error == "The connection broke, or what came back is not HTTP."


def test_of_an_endless_body_nothing_is_read(receiver: Receiver):
    left = threading.Event()

    def endless(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                handler.wfile.write(b"10000\r\n" + b"y" * 65_536 + b"\r\n")
        except OSError:
            left.set()

    receiver.instead = endless
    assert post(receiver.url).delivered
    assert left.wait(30), "the sender has not left"


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_what_is_no_http_is_a_failure_in_words(answer, receiver: Receiver):
    receiver.instead = lambda handler: handler.wfile.write(answer)
    assert post(receiver.url).error == "The connection broke, or what came back is not HTTP."


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of hooks.example, and its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=hooks.example", "-addext", "subjectAltName=DNS:hooks.example",
         "-keyout", folder / "key", "-out", folder / "certificate"],
        check=True, capture_output=True,
    )  # fmt: skip
    both = folder / "both.pem"
    both.write_text((folder / "key").read_text() + (folder / "certificate").read_text())
    return both


def test_the_certificate_must_be_the_names_and_the_name_is_asked_for(certificate: Path):
    asked: list[str | None] = []
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate)
    server.sni_callback = lambda _socket, name, _context: asked.append(name)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with receiving(server) as told:
        assert post(f"https://hooks.example:{told.port}/", found=["127.0.0.1"], tls=trusting).delivered
        assert asked == ["hooks.example"]
        impostor = post(f"https://other.example:{told.port}/", found=["127.0.0.1"], tls=trusting)
        stranger = post(f"https://hooks.example:{told.port}/", found=["127.0.0.1"])
    assert not impostor.delivered
    assert not stranger.delivered
    assert impostor.error.startswith("No secure connection could be made")
    assert len(told.received) == 1
