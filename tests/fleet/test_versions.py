import hashlib
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from fleet_harness import Home

from dataplane.contracts.catalog import VersionFile
from dataplane.fleet.versions import VersionError, Versions

FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 1000}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_version_becomes_a_folder_with_exactly_its_files_and_no_copied_bytes(home: Home) -> None:
    version = home.version("ver-1", FILES)
    folder = Versions(home.path, home.path / "store").materialise(version)
    assert folder == home.path / "versions" / version.digest
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert all((folder / file.name).samefile(home.blob(file.sha256)) for file in version.files)


def test_a_hash_is_computed_once_and_again_when_the_blob_changed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    version = home.version("ver-1", FILES)
    hashed: list[str] = []
    digest = hashlib.file_digest

    def counting(file: object, name: str) -> object:
        hashed.append(name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    Versions(home.path, home.path / "store").materialise(version)
    Versions(home.path, home.path / "store").materialise(version)
    assert len(hashed) == len(FILES)
    os.utime(home.blob(version.files[0].sha256), ns=(1, 1))
    Versions(home.path, home.path / "store").materialise(version)
    assert len(hashed) == len(FILES) + 1


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda blob: blob.unlink(), "is missing from the store"),
        (lambda blob: blob.write_bytes(b"weight" * 1000), "has 6000 bytes instead of 7000"),
        (lambda blob: blob.write_bytes(b"weighty" * 1000), "is corrupted"),
    ],
)
def test_a_damaged_blob_is_named_with_what_is_wrong_and_the_mend(home: Home, harm, words: str) -> None:
    version = home.version("ver-1", FILES)
    versions = Versions(home.path, home.path / "store")
    versions.materialise(version)
    blob = home.blob(next(file.sha256 for file in version.files if file.name == "model.safetensors"))
    harm(blob)
    with pytest.raises(VersionError, match=words) as caught:
        versions.materialise(version)
    assert "model.safetensors" in str(caught.value)
    assert blob.name in str(caught.value)
    assert "restore the blob" in str(caught.value)


@pytest.mark.parametrize("name", ["../escape", "a/b", "", ".hidden", "nul\0", "x" * 300])
def test_a_name_that_leads_out_of_the_folder_is_refused(home: Home, name: str) -> None:
    version = home.version("ver-1", FILES)
    odd = VersionFile(name=name, sha256=version.files[0].sha256, size_bytes=2)
    with pytest.raises(VersionError, match="no version may have"):
        Versions(home.path, home.path / "store").materialise(msgspec.structs.replace(version, files=(odd,)))


def test_a_digest_that_is_not_that_of_the_files_is_refused(home: Home) -> None:
    version = home.version("ver-1", FILES)
    for files in ((), version.files[:1]):
        with pytest.raises(VersionError, match="digest"):
            Versions(home.path, home.path / "store").materialise(msgspec.structs.replace(version, files=files))


def test_a_folder_that_was_tampered_with_is_made_anew(home: Home) -> None:
    version = home.version("ver-1", FILES)
    folder = Versions(home.path, home.path / "store").materialise(version)
    (folder / "extra.py").write_text("print()")
    (folder / "config.json").unlink()
    (folder / "config.json").write_bytes(b"[]")
    Versions(home.path, home.path / "store").materialise(version)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def test_a_store_on_another_file_system_is_linked_to_by_name(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    version = home.version("ver-1", FILES)
    folder = Versions(home.path, home.path / "store").materialise(version)
    assert (folder / "config.json").is_symlink()
    assert (folder / "config.json").read_bytes() == b"{}"
    assert Versions(home.path, home.path / "store").materialise(version) == folder


def test_folders_of_versions_that_left_are_removed_and_the_others_stay(home: Home) -> None:
    versions = Versions(home.path, home.path / "store")
    gone, kept = home.version("ver-1", FILES), home.version("ver-2", FILES | {"config.json": b"[]"})
    for version in (gone, kept):
        versions.materialise(version)
    versions.forget_others({kept.digest}, ())
    assert not (home.path / "versions" / gone.digest).exists()
    assert versions.materialise(kept).is_dir()
    assert versions.materialise(gone).is_dir()


def test_a_lost_memory_of_hashes_only_costs_hashing_again(home: Home) -> None:
    version = home.version("ver-1", FILES)
    folder = Versions(home.path, home.path / "store").materialise(version)
    (home.path / "versions" / "verified.json").write_bytes(b"\xff")
    shutil.rmtree(folder)
    assert Versions(home.path, home.path / "store").materialise(version) == folder
