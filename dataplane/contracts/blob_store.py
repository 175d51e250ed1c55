"""Where blobs lie: what the address of a store means, and the name of a blob in every store, for both planes."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec


class BucketAddress(msgspec.Struct, frozen=True):
    """A store that is a bucket: its name, what all names begin with, and its server where that is not Amazon's."""

    name: str
    prefix: str
    endpoint: str | None


def parse(url: str, *, s3_endpoint: str) -> Path | BucketAddress:
    """Return the folder or the bucket that ``url`` names; ``s3_endpoint`` is a server's URL, "" for Amazon's.

    Raises:
        ValueError: it names neither; the sentence says how to write them.
    """
    parts = urlsplit(url)
    if parts.scheme == "s3" and parts.netloc:
        return BucketAddress(parts.netloc, parts.path.strip("/"), s3_endpoint or None)
    if parts.scheme == "file" and parts.path.startswith("/"):
        return Path(unquote(parts.path))
    raise ValueError("write file:///FOLDER or s3://BUCKET/PREFIX")


def blob_name(sha256: str) -> str:
    """Return a blob's name within a store.

    Raises:
        ValueError: not a digest; it could name something else.
    """
    if re.fullmatch(r"[0-9a-f]{64}", sha256) is None:
        raise ValueError(f"{sha256!r} is not the hex of a SHA-256")
    return f"sha256/{sha256[:2]}/{sha256}"
