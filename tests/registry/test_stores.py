"""What both stores promise: the same tests on a folder and on an S3 server that checks signatures."""

import hashlib
import io
import os
import shutil
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from object_store import BUCKET, ObjectStore, running_object_store
from uploading import send

from controlplane.registry import stores
from controlplane.registry.stores import (
    CHECKSUM_HEADER,
    DigestMismatch,
    Part,
    PartMissing,
    Store,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UploadGone,
    room,
)
from controlplane.registry.stores.local import LocalStore
from controlplane.registry.stores.s3 import S3Store

KEY = "ver_01h2xcejqtf2nbrexx3vqjhp41/model.safetensors"
PIECES = (os.urandom(1000), os.urandom(1000), os.urandom(17))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


WHOLE = b"".join(PIECES)
PARTS = [Part(number, len(piece), sha256(piece)) for number, piece in enumerate(PIECES, 1)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with running_object_store(tmp_path_factory.mktemp("s3") / "buckets") as server:
        yield server


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    server: ObjectStore = request.getfixturevalue("server")
    return S3Store(bucket=BUCKET, prefix=tmp_path.name, endpoint=server.endpoint)


def put(store: Store, data: bytes, **changes: object) -> str:
    promised = {"sha256": sha256(data), "size_bytes": len(data)} | changes
    store.put(io.BytesIO(data), **promised)  # type: ignore[arg-type]
    return str(promised["sha256"])


def sent(store: Store, parts: list[Part] = PARTS, key: str = KEY) -> str:
    upload = store.begin(key)
    for part in parts:
        send(store.target(upload, part, expires_s=60), PIECES[part.number - 1], store)
    return upload


def test_a_blob_reads_back_and_goes_when_deleted(store, tmp_path):
    digest = put(store, b"weights")
    assert store.has(digest, 7)
    assert not store.has(digest, 8)
    store.verify(digest)
    with store.open(digest) as blob:
        assert blob.read() == b"weights"
    store.fetch(digest, tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"weights"
    store.delete(digest)
    store.delete(digest)
    assert not store.has(digest, 7)
    with pytest.raises(StoreError, match="missing"):
        store.verify(digest)
    with pytest.raises(StoreError, match="missing"):
        store.fetch(digest, tmp_path / "again")


def test_other_bytes_than_promised_never_become_a_blob(store):
    for changes in ({"sha256": sha256(b"other")}, {"size_bytes": 8}, {"size_bytes": 6}):
        with pytest.raises(DigestMismatch):
            put(store, b"weights", **changes)
    assert not store.has(sha256(b"weights"), 7)
    assert not store.has(sha256(b"other"), 7)


def test_a_name_that_is_no_digest_is_refused(store):
    for name in ("", "../../etc/passwd", "AB" * 32, "ab" * 31):
        with pytest.raises(ValueError, match="SHA-256"):
            store.has(name, 1)


def test_parts_in_any_order_become_the_file_and_the_file_a_blob(store):
    upload = sent(store, list(reversed(PARTS)))
    assert stores.key_of(upload) == KEY
    assert list(store.uploads()) == [upload]
    seen: list[int] = []
    digest = store.seal(upload, PARTS, seen.append)
    assert (digest, seen[-1]) == (sha256(WHOLE), len(WHOLE))
    assert not store.has(digest, len(WHOLE)), "it has no name before somebody has claimed it"
    store.place(upload, sha256=digest, size_bytes=len(WHOLE))
    store.verify(digest)
    store.discard(upload)
    assert list(store.uploads()) == []
    assert store.has(digest, len(WHOLE))


def test_each_step_may_be_done_again_after_a_crash(store):
    upload = sent(store)
    assert store.seal(upload, PARTS) == store.seal(upload, PARTS) == sha256(WHOLE)
    for _ in range(2):
        store.place(upload, sha256=sha256(WHOLE), size_bytes=len(WHOLE))
        store.discard(upload)
    store.verify(sha256(WHOLE))


def test_what_has_arrived_is_told_and_a_part_sent_again_is_one_part(store):
    upload = sent(store, [PARTS[0]])
    send(store.target(upload, PARTS[0], expires_s=60), PIECES[0], store)
    (arrived,) = store.arrived(upload)
    assert arrived.is_the(PARTS[0])
    assert not arrived.is_the(Part(1, 999, PARTS[0].sha256))
    assert not arrived.is_the(PARTS[1])


def test_a_missing_part_is_named(store):
    upload = sent(store, [PARTS[0], PARTS[2]])
    with pytest.raises(PartMissing, match="part"):
        store.seal(upload, PARTS)


def test_a_discarded_upload_takes_and_gives_nothing(store):
    upload = sent(store)
    target = store.target(upload, PARTS[0], expires_s=60)
    store.discard(upload)
    store.discard(upload)
    assert list(store.uploads()) == []
    with pytest.raises(UploadGone):
        store.arrived(upload)
    with pytest.raises(StoreError):
        store.seal(upload, PARTS)
    with pytest.raises(UploadGone):
        store.place(upload, sha256=sha256(WHOLE), size_bytes=len(WHOLE))
    with pytest.raises((UploadGone, httpx.HTTPStatusError)):
        send(target, PIECES[0], store)
    assert list(store.uploads()) == []


def test_two_files_of_a_version_are_two_uploads(store):
    one, two = sent(store), sent(store, key=KEY.replace("model", "other"))
    store.discard(one)
    assert list(store.uploads()) == [two]
    assert store.seal(two, PARTS) == sha256(WHOLE)


def test_tidying_leaves_what_is_young(store):
    upload = sent(store)
    digest = put(store, b"weights")
    store.tidy(datetime.now(UTC) + timedelta(days=1))
    store.verify(digest)
    assert store.seal(upload, PARTS) == sha256(WHOLE)


# --- the folder


def test_a_part_that_changed_on_disk_is_named(tmp_path):
    store = LocalStore(tmp_path)
    upload = sent(store)
    (part,) = tmp_path.glob("uploads/*/*/parts/00002-*")
    part.write_bytes(b"x" * 1000)
    with pytest.raises(DigestMismatch, match="part 2 has changed"):
        store.seal(upload, PARTS)


def test_a_part_that_is_announced_anew_replaces_the_older_bytes(tmp_path):
    store = LocalStore(tmp_path)
    upload = sent(store)
    piece = os.urandom(1000)
    part = Part(2, 1000, sha256(piece))
    send(store.target(upload, part, expires_s=60), piece, store)
    assert [item.is_the(part) for item in store.arrived(upload) if item.number == 2] == [True]
    assert store.seal(upload, [PARTS[0], part, PARTS[2]]) == sha256(PIECES[0] + piece + PIECES[2])


@pytest.mark.parametrize("chunks", [[b"short"], [PIECES[0], b"more"], [PIECES[1]]])
def test_bytes_that_were_not_announced_leave_nothing(tmp_path, chunks):
    store = LocalStore(tmp_path)
    upload = store.begin(KEY)
    incoming = store.receive(KEY, PARTS[0])

    def receive() -> None:
        for chunk in chunks:
            incoming.write(chunk)
        incoming.keep()

    with pytest.raises(DigestMismatch):
        receive()
    incoming.close()
    assert store.arrived(upload) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_part_on_its_way_while_the_upload_is_discarded_leaves_nothing(tmp_path):
    store = LocalStore(tmp_path)
    upload = store.begin(KEY)
    incoming = store.receive(KEY, PARTS[0])
    incoming.write(PIECES[0])
    store.discard(upload)
    with pytest.raises(UploadGone, match="ended"):
        incoming.keep()
    incoming.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_lost_lease_does_not_take_the_parts_from_the_new_one(tmp_path):
    """The slow worker finds the parts gone and the file whole: it has been sealed meanwhile."""
    store = LocalStore(tmp_path)
    upload = sent(store)
    first = True

    def overtaken(_: int) -> None:
        nonlocal first
        if first:
            first = False
            assert store.seal(upload, PARTS) == sha256(WHOLE)

    assert store.seal(upload, PARTS, overtaken) == sha256(WHOLE)


def test_what_crashed_writers_left_goes_once_it_is_old(tmp_path):
    store = LocalStore(tmp_path)
    (tmp_path / "incoming" / "discarded").mkdir(parents=True)
    (tmp_path / "incoming" / ".half").write_bytes(b"half")
    store.tidy(datetime.now(UTC) - timedelta(days=1))
    assert len(list((tmp_path / "incoming").iterdir())) == 2
    store.tidy(datetime.now(UTC) + timedelta(days=1))
    assert list((tmp_path / "incoming").iterdir()) == []


# --- the bucket


@pytest.fixture
def s3(server: ObjectStore, tmp_path: Path) -> S3Store:
    return S3Store(bucket=BUCKET, prefix=tmp_path.name, endpoint=server.endpoint)


def test_an_address_of_the_bucket_admits_only_the_announced_part(s3):
    target = s3.target(s3.begin(KEY), PARTS[0], expires_s=60)
    other = b64encode(hashlib.sha256(b"other").digest()).decode()
    with httpx.Client(trust_env=False) as client:

        def status(url: str = target.url, headers: object = dict(target.headers), data: bytes = PIECES[0]) -> int:
            return client.put(url, headers=headers, content=data).status_code  # type: ignore[arg-type]

        assert status(data=PIECES[0] + b"more") == 403
        assert status(data=PIECES[0][:-1]) == 403
        assert status(headers={}) == 403
        assert status(headers={CHECKSUM_HEADER: other}) == 403
        assert status(url=target.url.replace("partNumber=1", "partNumber=2")) == 403
        assert status(url=target.url.replace("X-Amz-Expires=60", "X-Amz-Expires=600")) == 403
        assert status(url=target.url.replace("/model.safetensors", "/config.json")) == 403
        assert status() == 200


def test_bytes_that_the_server_did_not_compare_are_found_when_the_file_is_sealed(s3):
    """The test's server ignores the checksum among the signed headers, as some do."""
    upload = s3.begin(KEY)
    target = s3.target(upload, PARTS[0], expires_s=60)
    with httpx.Client(trust_env=False) as client:
        client.put(target.url, headers=dict(target.headers), content=b"x" * 1000).raise_for_status()
    with pytest.raises(DigestMismatch, match="part 1"):
        s3.seal(upload, PARTS[:1])


def test_a_changed_blob_is_found_and_never_handed_out(s3, server, tmp_path):
    digest = put(s3, b"weights")
    (server.folder / BUCKET / tmp_path.name / "sha256" / digest[:2] / digest).write_bytes(b"weightz")
    with pytest.raises(DigestMismatch, match="has changed"):
        s3.verify(digest)
    with pytest.raises(DigestMismatch):
        s3.fetch(digest, tmp_path / "fetched")
    assert not (tmp_path / "fetched").exists()


def test_a_server_that_refuses_or_is_away_is_named(server, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreUnavailable, match="SignatureDoesNotMatch"):
        S3Store(bucket=BUCKET, prefix="", endpoint=server.endpoint).begin(KEY)
    away = S3Store(bucket=BUCKET, prefix="", endpoint="http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match="does not answer"):
        away.has(sha256(b"x"), 1)


# --- room


@pytest.fixture
def nearly_full(monkeypatch):
    """A disk on which, beside the reserve, there is room for 100 bytes."""
    disk = shutil.disk_usage("/")._replace(total=100 * room.RESERVE_BYTES, free=room.RESERVE_BYTES + 100)
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _folder: disk)


def test_uploads_leave_the_last_of_a_disk_alone(tmp_path, nearly_full):
    store = LocalStore(tmp_path)
    upload = store.begin(KEY)
    with pytest.raises(StoreFull, match="no room"):
        store.receive(KEY, PARTS[0])
    with closing(store.receive(KEY, PARTS[2])) as incoming:  # 17 bytes
        incoming.write(PIECES[2])
        incoming.keep()
    assert [part.number for part in store.arrived(upload)] == [3]
    with pytest.raises(StoreFull, match="no room"):
        store.seal(upload, PARTS)


def test_what_is_fetched_to_be_judged_leaves_the_last_of_a_disk_alone(server, tmp_path, nearly_full):
    store = S3Store(bucket=BUCKET, prefix=tmp_path.name, endpoint=server.endpoint)
    large, small = put(store, b"x" * 101), put(store, b"x" * 99)
    with pytest.raises(StoreFull, match="no room"):
        store.fetch(large, tmp_path / "large")
    assert not (tmp_path / "large").exists()
    store.fetch(small, tmp_path / "small")


# --- the choice


def test_the_settings_choose_the_store(settings, tmp_path):
    settings.PAGODA_HOME = tmp_path / "a home"
    assert stores.from_settings().root == tmp_path / "a home" / "store"
    settings.PAGODA_STORE_URL = (tmp_path / "elsewhere here").as_uri()
    assert stores.from_settings().root == tmp_path / "elsewhere here"
    settings.PAGODA_STORE_URL = "s3://bucket/some/prefix/"
    settings.PAGODA_S3_ENDPOINT = "http://127.0.0.1:9"
    assert isinstance(stores.from_settings(), S3Store)
