"""Versions out of a bucket, over a server that checks signatures."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from fleet_harness import Home
from object_store import BUCKET, ObjectStore, running_object_store

from dataplane.contracts.blob_store import BucketAddress, blob_name
from dataplane.contracts.catalog import VersionEntry, VersionFile
from dataplane.fleet.bucket import Bucket
from dataplane.fleet.versions import VersionError, Versions

FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 1000}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with running_object_store(tmp_path_factory.mktemp("s3")) as running:
        yield running


class Node:
    """A node's folder, and a prefix of its own in the bucket."""

    _prefixes = itertools.count()

    def __init__(self, path: Path, store: ObjectStore) -> None:
        self.path = path
        self.home = Home(path / "elsewhere")
        self.prefix = f"test-{next(self._prefixes)}"
        self.endpoint = store.endpoint
        self.s3: Any = boto3.client(
            "s3", endpoint_url=store.endpoint, config=Config(s3={"addressing_style": "path"}, signature_version="s3v4")
        )

    def version(self, files: dict[str, bytes], *, upload: bool = True) -> VersionEntry:
        version = self.home.version("ver-1", files)
        for file in version.files if upload else ():
            self.put(file, self.home.blob(file.sha256).read_bytes())
        return version

    def put(self, file: VersionFile, content: bytes) -> None:
        self.s3.put_object(Bucket=BUCKET, Key=self.key(file), Body=content)

    def key(self, file: VersionFile) -> str:
        return f"{self.prefix}/{blob_name(file.sha256)}"

    def versions(self, **changed: Any) -> Versions:
        address: dict[str, Any] = {"name": BUCKET, "prefix": self.prefix, "endpoint": self.endpoint}
        return Versions(self.path, self.path / "blobs", Bucket(BucketAddress(**address | changed)))

    def copies(self) -> set[str]:
        return {path.name for path in (self.path / "blobs").rglob("*") if path.is_file()}


@pytest.fixture
def node(tmp_path: Path, store: ObjectStore) -> Node:
    return Node(tmp_path, store)


def test_a_version_is_fetched_once_per_node_whatever_happens_to_the_fleet(node: Node) -> None:
    version = node.version(FILES)
    versions = node.versions()
    folder = versions.materialise(version)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert (versions.fetched, versions.hashed) == (len(FILES), 0)
    for again in (versions, node.versions()):
        again.materialise(version)
        assert again.hashed == 0
    assert versions.fetched == len(FILES)
    assert again.fetched == 0


def test_bytes_that_are_not_those_of_the_name_never_become_a_blob_and_the_good_ones_are_not_fetched_again(
    node: Node,
) -> None:
    version = node.version(FILES)
    weights = next(file for file in version.files if file.name == "model.safetensors")
    node.put(weights, b"weighty" * 1000)
    versions = node.versions()
    with pytest.raises(VersionError, match=r"model\.safetensors: blob .* came from the store as 7000 bytes that hash"):
        versions.materialise(version)
    assert weights.sha256 not in node.copies()
    assert not versions.is_here(version.digest)
    node.put(weights, FILES["model.safetensors"])
    versions.materialise(version)
    assert versions.fetched == 2
    assert versions.is_here(version.digest)


def test_a_longer_object_is_not_read_to_its_end(node: Node) -> None:
    version = node.version(FILES)
    node.put(version.files[0], b"{" * 9_000_000)
    with pytest.raises(VersionError, match="bytes that hash to"):
        node.versions().materialise(version)
    assert node.copies() == set()


def test_a_missing_blob_a_refusal_and_a_store_that_is_away_are_told_apart(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = node.version({"config.json": b"absent"}, upload=False)
    with pytest.raises(VersionError, match=r"config\.json: blob .* is missing from the store"):
        node.versions().materialise(absent)
    with pytest.raises(VersionError, match="does not give blob") as caught:
        node.versions(endpoint="http://127.0.0.1:9").materialise(absent)
    assert "127.0.0.1" not in str(caught.value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the credentials that it saw first
    with pytest.raises(VersionError, match="refuses to give blob") as caught:
        node.versions().materialise(node.version({"config.json": b"there"}, upload=False))
    assert "a-wrong-secret" not in str(caught.value)


def test_a_harmed_copy_is_fetched_again(node: Node) -> None:
    version = node.version(FILES)
    versions = node.versions()
    folder = versions.materialise(version)
    copy = (folder / "model.safetensors").resolve()
    copy.write_bytes(b"weighty" * 1000)
    assert (versions.materialise(version) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert versions.fetched == len(FILES) + 1


def test_copies_go_with_the_last_version_that_needs_them_and_packed_weights_with_theirs(node: Node) -> None:
    versions = node.versions()
    gone, kept = node.version(FILES), node.version(FILES | {"config.json": b"[]"})
    for version in (gone, kept):
        versions.materialise(version)
        (node.path / "runtime" / f"{version.digest}-fp32-1").mkdir(parents=True)
    (node.path / "runtime" / "local-0123-fp32-1").mkdir()
    versions.forget_others({kept.digest}, ())
    assert node.copies() == {file.sha256 for file in kept.files}
    packed = {path.name for path in (node.path / "runtime").iterdir()}
    assert packed == {f"{kept.digest}-fp32-1", "local-0123-fp32-1"}
    versions.forget_others((), {kept.files[0].sha256})
    assert node.copies() == {kept.files[0].sha256}


def test_a_fetch_ends_when_the_fleet_does(node: Node) -> None:
    version = node.version(FILES)
    versions = node.versions()
    versions.stop()
    with pytest.raises(VersionError, match="the fleet shuts down"):
        versions.materialise(version)
    assert node.copies() == set()
