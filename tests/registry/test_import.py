"""Folders of this machine become versions, judged by the real inspector in its child process."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError
from tiny_models import make_tiny_llama

from controlplane.registry import selectors, services
from controlplane.registry.models import Artifact, Model, ModelVersion, VersionFile
from controlplane.registry.stores.local import LocalStore
from dataplane.contracts.verdict import version_digest
from tenants.actor import acting_as, member_actor, platform_actor, system_actor
from tenants.errors import Forbidden, Invalid, NotFound
from tenants.models import AuditEvent

PLATFORM = system_actor("tests")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def import_(folder: Path, store: LocalStore, tenant: str = "acme", name: str = "tiny", said: list[str] | None = None):
    return services.import_folder(
        actor=PLATFORM, tenant_slug=tenant, name=name, folder=folder, store=store,
        say=(said if said is not None else []).append,
    )  # fmt: skip


def blobs(store: LocalStore) -> set[str]:
    return {path.name for path in store.root.rglob("*") if path.is_file()}


def test_a_folder_becomes_version_1_with_every_byte_in_the_store(personas, tiny, store):
    said: list[str] = []
    version = import_(tiny, store, said=said)
    assert (version.number, version.state, version.context_tokens) == (1, "ready", 512)
    assert version.checked_config.num_kv_heads == 2
    with acting_as(PLATFORM):
        files = {file.name: file.artifact.sha256 for file in version.files.select_related("artifact")}
        (event,) = AuditEvent.objects.filter(verb="version.import")
    assert set(files) == {path.name for path in tiny.iterdir()}
    for name, sha256 in files.items():
        assert hashlib.sha256((tiny / name).read_bytes()).hexdigest() == sha256
        store.verify(sha256)
    assert blobs(store) == set(files.values())
    assert (event.tenant_id, event.after["digest"]) == (personas.acme.id, version.digest)
    assert said[0].startswith("inspecting")
    assert any("MiB stored" in line for line in said)


def test_the_same_content_is_the_same_version_and_lost_blobs_come_back(personas, tiny, store, tmp_path):
    first = import_(tiny, store)
    copy = shutil.copytree(tiny, tmp_path / "copy")
    shutil.rmtree(store.root)
    said: list[str] = []
    again = import_(copy, store, said=said)
    assert again == first
    assert said[-1] == "this is version 1 of tiny already"
    store.verify(hashlib.sha256((tiny / "config.json").read_bytes()).hexdigest())
    import_(tiny, store, said=said)
    assert sum(line.endswith("already stored") for line in said) == len(list(tiny.iterdir()))


def test_versions_count_on_and_share_what_is_equal(personas, tiny, store, tmp_path):
    other = make_tiny_llama(tmp_path / "other", seed=1)
    one, two = import_(tiny, store), import_(other, store)
    assert (one.number, two.number) == (1, 2)
    with acting_as(PLATFORM):
        assert Artifact.objects.count() == len(blobs(store)) < VersionFile.objects.count()
        assert Model.objects.count() == 1


def test_two_tenants_with_the_same_bytes_each_have_their_own_rows(personas, tiny, store):
    mine = import_(tiny, store)
    said: list[str] = []
    theirs = import_(tiny, store, tenant="evil", said=said)
    assert (mine.digest, mine.tenant_id) != (theirs.digest, theirs.tenant_id)
    assert not any("already stored" in line for line in said), "the speed of an import must not tell of other tenants"
    seen = selectors.list_versions(actor=member_actor(personas.mallory, "evil"))
    assert [version.id for version in seen] == [theirs.id]
    with pytest.raises(NotFound):
        selectors.get_version(actor=member_actor(personas.mallory, "evil"), version_id=mine.id)


def test_the_digest_names_the_content(personas, tiny, store):
    version = import_(tiny, store)
    with acting_as(PLATFORM):
        from dataplane.contracts.catalog import VersionFile as Entry

        entries = [
            Entry(name=file.name, sha256=file.artifact.sha256, size_bytes=file.artifact.size_bytes)
            for file in version.files.select_related("artifact")
        ]
    assert version_digest(reversed(entries)) == version.digest


def spoil_pickle(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def spoil_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.Model"}}))


def spoil_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def spoil_everything(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("spoil", "file"),
    [
        (spoil_pickle, "pytorch_model.bin"),
        (spoil_config, "config.json"),
        (spoil_weights, "model.safetensors"),
        (spoil_everything, ""),
    ],
)
def test_a_bad_folder_is_refused_by_file_reason_and_mend_and_nothing_is_kept(
    personas, tiny, store, tmp_path, spoil, file
):
    folder = shutil.copytree(tiny, tmp_path / "bad")
    spoil(folder)
    with pytest.raises(services.ImportRefused) as refusal:
        import_(folder, store)
    assert file in {item.file for item in refusal.value.refusals} or not file
    assert all(item.reason and item.mend for item in refusal.value.refusals)
    assert not store.root.exists()
    with acting_as(PLATFORM):
        assert not ModelVersion.objects.exists()
        assert not Model.objects.exists()


def test_a_file_that_changes_after_its_inspection_is_refused(personas, tiny, store, tmp_path, monkeypatch):
    folder = shutil.copytree(tiny, tmp_path / "moving")
    judged = services.inspect(folder)
    monkeypatch.setattr(services, "inspect", lambda _folder: judged)
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\xff")
    with pytest.raises(Invalid, match=r"model.safetensors.*changed while they were copied"):
        import_(folder, store)
    with acting_as(PLATFORM):
        assert not ModelVersion.objects.exists()


def test_blobs_that_are_collected_before_they_are_referred_to_are_stored_again(personas, tiny, store, monkeypatch):
    refer, gone = services.blobs.refer, []

    def collected_once(*, version, files, store):
        if not gone:
            gone.extend(file.name for file in files[:1])
            store.delete(files[0].sha256)
        refer(version=version, files=files, store=store)

    monkeypatch.setattr(services.blobs, "refer", collected_once)
    version = import_(tiny, store)
    assert gone
    assert version.number == 1
    with acting_as(PLATFORM):
        for file in version.files.select_related("artifact"):
            store.verify(file.artifact.sha256)
        assert ModelVersion.objects.count() == 1


@pytest.mark.parametrize("name", ["", "x", "Has Space", "../up", "-dash", "a" * 65])
def test_a_name_that_is_none_is_refused_before_anything_is_read(personas, store, tmp_path, name):
    with pytest.raises(Invalid, match="cannot be the name"):
        import_(tmp_path / "nowhere", store, name=name)


def test_only_the_platform_imports(personas, tiny, store):
    with pytest.raises(Forbidden):
        services.import_folder(
            actor=member_actor(personas.alice, "acme"), tenant_slug="acme", name="tiny", folder=tiny, store=store,
            say=print,
        )  # fmt: skip
    with pytest.raises(NotFound, match="nobody"):
        import_(tiny, store, tenant="nobody")


def test_the_database_itself_keeps_a_version_as_it_is(committed, personas, tiny, store):
    version = import_(tiny, store)
    for change in ({"digest": "0" * 64}, {"number": 9}, {"config": {}}):
        with pytest.raises(ProgrammingError, match="immutable"), acting_as(PLATFORM):
            ModelVersion.objects.update(**change)
    with pytest.raises(Exception, match="permission denied"), acting_as(PLATFORM):
        VersionFile.objects.update(name="x")
    with acting_as(PLATFORM):
        ModelVersion.objects.filter(pk=version.pk).update(state="archived")


def test_the_command_prints_the_version_and_names_its_admin(personas, tiny, settings, tmp_path, capsys):
    settings.PAGODA_HOME = tmp_path / "home"
    call_command("import_model", str(tiny), "--tenant=acme", "--name=tiny", "--by=root@pagoda.example")
    output = capsys.readouterr()
    with acting_as(PLATFORM):
        version = ModelVersion.objects.get()
    assert output.out.strip() == version.id
    assert version.created_by == "root@pagoda.example"
    assert "made version 1 of tiny" in output.err
    assert (tmp_path / "home" / "store" / "sha256").is_dir()


def test_the_command_ends_with_the_reasons(personas, tiny, settings, tmp_path):
    settings.PAGODA_HOME = tmp_path / "home"
    folder = shutil.copytree(tiny, tmp_path / "bad")
    spoil_pickle(folder)
    with pytest.raises(CommandError, match=r"pytorch_model\.bin: "):
        call_command("import_model", str(folder), "--tenant=acme", "--name=tiny")
    for email in ("alice@acme.example", "x@acme.example"):
        with pytest.raises(CommandError, match="not the address of a platform admin"):
            call_command("import_model", str(tiny), "--tenant=acme", "--name=tiny", f"--by={email}")
    with pytest.raises(CommandError, match="no tenant 'nobody'"):
        call_command("import_model", str(tiny), "--tenant=nobody", "--name=tiny")


def test_lists_take_the_same_queries_for_one_and_for_many(personas, tiny, store, django_assert_num_queries, tmp_path):
    bob = member_actor(personas.bob, "acme")
    import_(tiny, store)
    for count in (1, 3):
        for seed in range(1, count):
            import_(make_tiny_llama(tmp_path / f"m{seed}", seed=seed), store, name=f"m{seed}")
        with django_assert_num_queries(7):  # savepoint, set the tenant, versions, their files, aliases, ...
            assert len(selectors.list_versions(actor=bob)) == count
        with django_assert_num_queries(5):
            assert len(selectors.list_models(actor=bob)) == count


def test_a_platform_admin_may_import(personas, tiny, store):
    version = services.import_folder(
        actor=platform_actor(personas.root), tenant_slug="acme", name="tiny", folder=tiny, store=store, say=print
    )
    assert version.created_by == "root@pagoda.example"
