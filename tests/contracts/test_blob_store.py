from pathlib import Path

import pytest

from dataplane.contracts.blob_store import BucketAddress, blob_name, parse


@pytest.mark.parametrize(
    ("url", "s3_endpoint", "address"),
    [
        ("file:///srv/my%20store", "", Path("/srv/my store")),
        ("s3://models", "", BucketAddress("models", "", None)),
        ("s3://models/a/b/", "http://127.0.0.1:9000", BucketAddress("models", "a/b", "http://127.0.0.1:9000")),
    ],
)
def test_a_store_is_a_folder_or_a_bucket(url: str, s3_endpoint: str, address: Path | BucketAddress) -> None:
    assert parse(url, s3_endpoint=s3_endpoint) == address


@pytest.mark.parametrize("url", ["", "s3://", "file://", "file:here", "https://store/", "/srv/store"])
def test_anything_else_is_refused_with_how_to_write_it(url: str) -> None:
    with pytest.raises(ValueError, match="file:///FOLDER or s3://BUCKET"):
        parse(url, s3_endpoint="")


def test_a_blob_is_named_by_its_digest() -> None:
    assert blob_name("ab" * 32) == f"sha256/ab/{'ab' * 32}"


@pytest.mark.parametrize("digest", ["", "ab", "AB" * 32, "../" * 21 + "x", "ab" * 32 + "\n"])
def test_what_is_no_digest_names_no_blob(digest: str) -> None:
    with pytest.raises(ValueError, match="SHA-256"):
        blob_name(digest)
