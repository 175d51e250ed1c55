"""Folders of the Hugging Face cache, whose files are links: imported by the operator, and nothing else is followed."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_models import make_tiny_llama

from controlplane.registry import links, services
from controlplane.registry.stores.local import LocalStore
from tenants.actor import acting_as, system_actor

PLATFORM = system_actor("tests")


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A snapshot as the cache has it: links to blobs that are called by their digest, and bookkeeping."""
    entry = tmp_path / "cache" / "models--acme--Tiny"
    folder = entry / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    (entry / "blobs").mkdir()
    tiny = make_tiny_llama(tmp_path / "tiny")
    (tiny / ".gitattributes").write_text("*.safetensors filter=lfs")
    for number, file in enumerate(sorted(tiny.iterdir())):
        file.rename(entry / "blobs" / f"{number:064x}")
        (folder / file.name).symlink_to(Path("../../blobs") / f"{number:064x}")
    return folder


def shown(folder: Path, scratch: Path) -> set[str]:
    """The names of the regular files that the inspector would see."""
    with links.as_files(folder, scratch) as files:
        found = {path.name for path in files.iterdir() if path.is_file() and not path.is_symlink()}
        assert all(path.read_bytes() == (folder / path.name).read_bytes() for path in files.iterdir() if path.is_file())
    return found


def test_links_into_the_cache_are_shown_as_files_and_nothing_is_left(snapshot: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    names = {path.name for path in snapshot.iterdir()} - {".gitattributes"}
    assert shown(snapshot, scratch) == names
    assert list(scratch.iterdir()) == []


def test_where_files_cannot_be_linked_they_are_copied(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_file_system(*_arguments: object, **_options: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(links.os, "link", other_file_system)
    (snapshot / "README.md").symlink_to("/etc/hostname")
    assert "model.safetensors" in shown(snapshot, tmp_path / "scratch")
    assert "README.md" not in shown(snapshot, tmp_path / "scratch")


def test_a_folder_of_real_files_is_shown_as_it_is(tmp_path: Path) -> None:
    tiny = make_tiny_llama(tmp_path / "tiny")
    with links.as_files(tiny, tmp_path / "scratch") as files:
        assert files == tiny


def test_a_link_that_leads_elsewhere_stays_a_link(snapshot: Path, tmp_path: Path) -> None:
    (snapshot / "README.md").symlink_to("/etc/hostname")
    (snapshot / "LICENSE").symlink_to("../../blobs/../refs")
    (snapshot / "onnx").mkdir()
    with links.as_files(snapshot, tmp_path / "scratch") as files:
        assert (files / "README.md").is_symlink()
        assert (files / "LICENSE").is_symlink()
        assert list((files / "onnx").iterdir()) == []


def test_a_snapshot_is_imported_and_says_where_it_came_from(personas, snapshot, tmp_path, settings) -> None:
    settings.PAGODA_HOME = tmp_path / "home"
    version = services.import_folder(
        actor=PLATFORM,
        tenant_slug="acme",
        name="tiny",
        folder=snapshot,
        store=LocalStore(tmp_path / "store"),
        say=print,
    )
    assert version.source == str(snapshot)
    with acting_as(PLATFORM):
        names = {file.name for file in version.files.all()}
    assert names == {path.name for path in snapshot.iterdir()} - {".gitattributes"}


def test_a_snapshot_with_a_link_to_this_machines_files_is_refused_by_name(
    personas, snapshot, tmp_path, settings
) -> None:
    settings.PAGODA_HOME = tmp_path / "home"
    (snapshot / "config.json").unlink()
    shutil.copy(snapshot / "generation_config.json", tmp_path / "stray.json")
    (tmp_path / "stray.json").write_text(json.dumps({}))
    (snapshot / "config.json").symlink_to(tmp_path / "stray.json")
    with pytest.raises(services.ImportRefused, match=r"config\.json: it is a link"):
        services.import_folder(
            actor=PLATFORM, tenant_slug="acme", name="tiny", folder=snapshot, store=LocalStore(tmp_path / "store"),
            say=print,
        )  # fmt: skip
