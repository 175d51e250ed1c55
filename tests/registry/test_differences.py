"""What changed between two versions."""

from domain import CONFIG, sha256
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from controlplane.registry.differences import Change, Content, FieldChange, FileChange, Part, difference, part_of
from dataplane.contracts.catalog import VersionFile

NAMES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md")


def content(files: dict[str, str], **fields: object) -> Content:
    listed = tuple(VersionFile(name, sha256(text), len(text)) for name, text in sorted(files.items()))
    facts = {"num_parameters": 10, "weight_bytes": 40, "has_chat_template": True, "licence": "mit"} | fields
    return Content(config=facts.pop("config", CONFIG), files=listed, **facts)


def test_a_longer_context_and_another_tokenizer_are_named():
    old = content({"config.json": "a", "tokenizer.json": "t"})
    new = content({"config.json": "bb", "tokenizer.json": "u", "README.md": "r"},
                  config=with_fields(CONFIG, context_tokens=1024, num_layers=3), licence="")  # fmt: skip
    found = difference(old, new)
    assert found.config == (FieldChange("num_layers", 2, 3), FieldChange("context_tokens", 512, 1024))
    assert FieldChange("licence", "mit", None) in found.counts
    assert FieldChange("tensors", 21, 30) in found.counts
    assert FileChange("README.md", Part.DOCUMENT, Change.ADDED, None, 1) in found.files
    assert FileChange("config.json", Part.CONFIG, Change.CHANGED, 1, 2) in found.files
    assert found.changed(Part.TOKENIZER)
    assert not found.changed(Part.WEIGHTS)


def test_files_are_told_apart_by_what_they_are_for():
    assert part_of("model-00001-of-00002.safetensors") is Part.WEIGHTS
    assert part_of("model.safetensors.index.json") is Part.WEIGHTS
    assert part_of("generation_config.json") is Part.GENERATION
    assert part_of("LICENSE") is Part.DOCUMENT


files = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["x", "yy", "zzz"]))


@given(files, files)
def test_each_file_of_either_version_is_listed_once_with_what_happened_to_it(old, new):
    found = difference(content(old), content(new)).files
    assert [file.name for file in found] == sorted(old.keys() | new.keys())
    for file in found:
        before, after = old.get(file.name), new.get(file.name)
        assert (file.change is Change.SAME) == (before == after)
        assert (file.change is Change.ADDED) == (before is None)
        assert (file.change is Change.REMOVED) == (after is None)


@given(files)
def test_a_version_does_not_differ_from_itself(names):
    found = difference(content(names), content(names))
    assert (found.config, found.counts) == ((), ())
    assert all(file.change is Change.SAME for file in found.files)
