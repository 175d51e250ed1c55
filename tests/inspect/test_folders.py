import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataplane.contracts.verdict import CHECKS, CheckState, Verdict, version_digest
from dataplane.inspect import folder as folder_module
from dataplane.inspect.folder import FolderError
from dataplane.inspect.inspection import inspect
from dataplane.inspect.names import CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS, WEIGHTS_INDEX
from tests.text import tokenizer_files
from tests.tiny_models import make_tiny_llama


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tokenizer_files.byte_level(tmp_path / "model")


def reasons(verdict: Verdict) -> dict[str, str]:
    assert all(refusal.mend for refusal in verdict.refusals)
    return {refusal.file: refusal.reason for refusal in verdict.refusals}


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def split_weights(model: Path, count: int = 2) -> dict[str, str]:
    """Cut the weights into shards with their index, as save_pretrained does; return the index's map."""
    raw = (model / WEIGHTS).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    tensors = [name for name in header if name != "__metadata__"]
    where: dict[str, str] = {}
    for number in range(count):
        name, data, shard = f"model-{number + 1:05}-of-{count:05}.safetensors", b"", {}
        for tensor in tensors[number::count]:
            begin, end = (8 + length + offset for offset in header[tensor]["data_offsets"])
            shard[tensor] = header[tensor] | {"data_offsets": [len(data), len(data) + end - begin]}
            data += raw[begin:end]
            where[tensor] = name
        text = json.dumps(shard).encode()
        (model / name).write_bytes(len(text).to_bytes(8, "little") + text + data)
    (model / WEIGHTS).unlink()
    (model / WEIGHTS_INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return where


GOOD: dict[str, dict[str, Any]] = {
    "grouped queries": {},
    "one head for each": {"num_kv_heads": 4},
    "tied": {"tied_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "half precision": {"dtype": "fp16"},
    "brain floats": {"dtype": "bf16"},
}


@pytest.mark.parametrize("options", GOOD.values(), ids=GOOD)
def test_a_good_model_is_accepted_with_its_figures(tmp_path: Path, options: dict[str, Any]) -> None:
    model = make_tiny_llama(tmp_path, **options)
    verdict = inspect(str(model))
    assert reasons(verdict) == {}
    assert tuple(check.name for check in verdict.checks) == CHECKS
    states = {check.name: check.state for check in verdict.checks}
    assert {name for name, state in states.items() if state is not CheckState.PASSED} == {
        "tokenizer_trial", "template_trial",  # in processes of their own: see test_trials.py
    }  # fmt: skip
    assert [file.name for file in verdict.files] == sorted(path.name for path in model.iterdir())
    assert verdict.weight_bytes == verdict.num_parameters * (4 if "dtype" not in options else 2)
    assert verdict.config is not None
    assert (verdict.config.context_tokens, verdict.config.eos_token_ids) == (512, (2,))
    assert verdict.has_chat_template


def test_shards_with_their_index_and_documents_are_accepted(model: Path) -> None:
    split_weights(model, 3)
    (model / "README.md").write_text("# <script>alert(1)</script> é")
    (model / "LICENSE").write_text("Apache-2.0")
    assert reasons(inspect(str(model))) == {}


def test_what_transformers_saves_is_accepted(tmp_path: Path) -> None:
    import transformers

    model = tokenizer_files.byte_level(tmp_path / "ours")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    for name, options in {"whole": {}, "shards": {"max_shard_size": "20kB"}}.items():
        saved = tmp_path / name
        loaded.save_pretrained(saved, **options)
        tokenizer.save_pretrained(saved)
        assert reasons(inspect(str(saved))) == {}


def test_the_digest_follows_the_content_and_nothing_else(model: Path, tmp_path: Path) -> None:
    def digest(folder: Path) -> str:
        return version_digest(inspect(str(folder)).files)

    first = digest(model)
    again = tokenizer_files.byte_level(tmp_path / "again")
    assert digest(again) == first
    (again / "README.md").write_text("more")
    assert digest(again) != first


class Evil:
    """Unpickling this makes the marker file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.marker),)


def zipped(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return buffer.getvalue()


def tarred(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("../../etc/cron.d/evil")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, TOKENIZER, TOKENIZER_CONFIG, "README.md", "chat_template.jinja"])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5, "zip", "tar"])
def test_a_renamed_pickle_is_refused_and_nothing_runs(
    model: Path, tmp_path: Path, name: str, protocol: int | str
) -> None:
    marker = tmp_path / "ran"
    content = pickle.dumps(Evil(marker), protocol if isinstance(protocol, int) else 4)
    wrapped = {"zip": zipped, "tar": tarred}.get(str(protocol), bytes)(content)
    (model / name).write_bytes(wrapped)
    plain_text = protocol == 0 and name in (
        "README.md",
        "chat_template.jinja",
    )  # does nothing where nobody unpickles it
    assert (name in reasons(inspect(str(model)))) != plain_text
    assert not marker.exists()
    pickle.loads(content)  # the control: it would have run
    assert marker.exists()


ODD_NAMES = [
    "pytorch_model.bin", "model.pt", "model.ckpt", "weights.pkl", "training_args.bin", "modeling_evil.py", "setup.sh",
    "evil.so", "model.gguf", "model.zip", "model.tar.gz", "model.onnx", "tf_model.h5", "flax_model.msgpack",
    "tokenizer.model", "vocab.json", "merges.txt", "adapter_model.safetensors", "model-1-of-2.safetensors",
    "model-00001-of-00002.safetensors.bak", "Model.safetensors", "CONFIG.JSON", "config.json ", " config.json",
    "config.json\n", "config.json\x07", ".gitattributes", ".hidden", "..config.json", "...", "-rf", "~", "%2e%2e",
    "..\\config.json", "C:config.json", "config.json:stream", "con", "config．json", "cоnfig.json", "config.json\u202e",
    "модель.safetensors", "a" * 255, "README.md.py", "readme.MD", "special_tokens_map.json.py", "generation_config",
    "chat_template.json", "<img src=x onerror=alert(1)>", "'; DROP TABLE models; --", "$(reboot)", "`id`", "|id", "*",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_file_outside_the_closed_set_is_refused_by_name(model: Path, name: str) -> None:
    (model / name).write_bytes(b"{}")
    refused = reasons(inspect(str(model)))
    assert len(refused) == 1
    assert all(character.isprintable() and character.isascii() for character in next(iter(refused)))


def test_a_name_that_is_no_text_is_refused(model: Path) -> None:
    with open(os.fsencode(model) + b"/\xff\xfe.json", "wb") as file:
        file.write(b"{}")
    verdict = inspect(str(model))
    assert len(reasons(verdict)) == 1
    assert verdict.files == ()


def test_links_folders_and_devices_are_refused_and_never_opened(model: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"secret": 1}')
    (model / GENERATION_CONFIG).unlink()
    (model / GENERATION_CONFIG).symlink_to(secret)
    (model / TOKENIZER_CONFIG).unlink()
    os.mkfifo(model / TOKENIZER_CONFIG)  # opening it would wait for a writer for ever
    (model / "README.md").symlink_to("/dev/zero")
    (model / "LICENSE").mkdir()
    assert reasons(inspect(str(model))) == {
        GENERATION_CONFIG: "it is a link",
        TOKENIZER_CONFIG: "it is not a file",
        "README.md": "it is a link",
        "LICENSE": "it is a folder",
    }


def test_a_file_exchanged_for_a_link_after_the_look_is_not_followed(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (model / GENERATION_CONFIG).unlink()
    (model / GENERATION_CONFIG).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("{}")
    monkeypatch.setattr(folder_module, "_check_kind", lambda _folder, _name: None)
    assert "cannot be read" in reasons(inspect(str(model)))[GENERATION_CONFIG]


def test_a_file_that_changes_while_it_is_hashed_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = folder_module.File.sha256

    def interfere(file: folder_module.File) -> str:
        if file.name == CONFIG:
            with (model / CONFIG).open("a") as other:
                other.write(" ")
        return hashed(file)

    monkeypatch.setattr(folder_module.File, "sha256", interfere)
    assert "changed" in reasons(inspect(str(model)))[CONFIG]


def test_a_folder_of_too_many_files_is_refused(model: Path) -> None:
    for number in range(300):
        (model / f"model-{number:05}-of-00300.safetensors").write_bytes(b"x")
    verdict = inspect(str(model))
    assert "more than" in reasons(verdict)[""]
    assert len(verdict.refusals) <= 50


@pytest.mark.parametrize("where", ["nothing", "file"])
def test_what_is_no_folder_is_an_error_of_use(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderError, match=where):
        inspect(str(tmp_path / where))


def remove(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda model: (
        (model / name).write_bytes(content if isinstance(content, bytes) else content.encode()) and None
    )


def change(name: str, **changes: object) -> Callable[[Path], None]:
    return lambda model: edit(model / name, **changes)


def both(first: Callable[[Path], None], second: Callable[[Path], None]) -> Callable[[Path], None]:
    def apply(model: Path) -> None:
        first(model)
        second(model)

    return apply


def cut_weights(model: Path) -> None:
    with (model / WEIGHTS).open("r+b") as file:
        file.truncate((model / WEIGHTS).stat().st_size - 1)


def index_map(**changes: object) -> Callable[[Path], None]:
    def apply(model: Path) -> None:
        where = split_weights(model)
        (model / WEIGHTS_INDEX).write_text(json.dumps({"weight_map": where | changes}))

    return apply


def shards_then(after: Callable[[Path], None]) -> Callable[[Path], None]:
    def split(model: Path) -> None:
        split_weights(model)

    return both(split, after)


HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
ONE_TENSOR = len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)

CASES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no config": (remove(CONFIG), CONFIG, "missing"),
    "no tokenizer": (remove(TOKENIZER), TOKENIZER, "missing"),
    "no weights": (remove(WEIGHTS), "", "no weights"),
    "empty config": (write(CONFIG, ""), CONFIG, "empty"),
    "config with code": (change(CONFIG, auto_map={"AutoModel": "evil.Evil"}), CONFIG, "auto_map"),
    "tokenizer with code": (change(TOKENIZER_CONFIG, auto_map={"AutoTokenizer": "e.E"}), TOKENIZER_CONFIG, "auto_map"),
    "absurd config": (change(CONFIG, num_hidden_layers=10**9), CONFIG, "num_hidden_layers"),
    "config over the limit": (write(CONFIG, b"{" + b" " * 300_000 + b"}"), CONFIG, "limit"),
    "more layers than weights": (change(CONFIG, num_hidden_layers=3), "", "lack"),
    "fewer layers than weights": (change(CONFIG, tie_word_embeddings=True), "", "ties"),
    "another vocabulary": (change(CONFIG, vocab_size=321), "", "shape"),
    "tokens without embeddings": (change(CONFIG, vocab_size=319), TOKENIZER, "embeddings"),
    "end of text out of range": (change(GENERATION_CONFIG, eos_token_id=10**6), GENERATION_CONFIG, "eos_token_id"),
    "tokenizer that aborts": (change(TOKENIZER, padding={"strategy": {"Fixed": 400_000_000}}), TOKENIZER, "padding"),
    "template that is wrong": (write("chat_template.jinja", "{% for"), "chat_template.jinja", "template"),
    "template of bytes": (write("chat_template.jinja", b"\xff\xfe"), "chat_template.jinja", "UTF-8"),
    "template in the settings": (
        both(remove("chat_template.jinja"), change(TOKENIZER_CONFIG, chat_template="{% if")),
        TOKENIZER_CONFIG, "template",
    ),
    "document of bytes": (write("README.md", b"\xff\xfe\x00"), "README.md", "UTF-8"),
    "document with NUL": (write("README.md", "a\0b"), "README.md", "NUL"),
    "document that is a program": (write("LICENSE", b"\x7fELF\x02\x01\x01"), "LICENSE", "program"),
    "weights cut off": (cut_weights, WEIGHTS, "file at"),
    "shard missing": (shards_then(remove("model-00002-of-00002.safetensors")), "", "complete"),
    "index missing": (shards_then(remove(WEIGHTS_INDEX)), WEIGHTS_INDEX, "missing"),
    "index without shards": (write(WEIGHTS_INDEX, "{}"), WEIGHTS_INDEX, "no shards"),
    "both kinds of weights": (
        shards_then(write(WEIGHTS, ONE_TENSOR)), "", "shards too",
    ),
    "index that climbs": (index_map(**{"lm_head.weight": "../../../etc/passwd"}), WEIGHTS_INDEX, "weight_map"),
    "index of an absolute path": (index_map(**{"lm_head.weight": "/etc/passwd"}), WEIGHTS_INDEX, "weight_map"),
    "index of another shard": (
        index_map(**{"model.norm.weight": "model-00003-of-00003.safetensors"}), WEIGHTS_INDEX, "weight_map",
    ),
    "index of a tensor too many": (index_map(ghost="model-00001-of-00002.safetensors"), WEIGHTS_INDEX, "weight_map"),
    "index with more": (shards_then(change(WEIGHTS_INDEX, hook="os.system")), WEIGHTS_INDEX, "not known"),
    "index that is a list": (shards_then(write(WEIGHTS_INDEX, "[]")), WEIGHTS_INDEX, "object"),
}  # fmt: skip


@pytest.mark.parametrize(("break_it", "file", "reason"), CASES.values(), ids=CASES)
def test_what_is_wrong_is_named_with_its_file(
    model: Path, break_it: Callable[[Path], None], file: str, reason: str
) -> None:
    break_it(model)
    verdict = inspect(str(model))
    refused = reasons(verdict)
    assert reason in refused[file]
    assert verdict.files == ()
    assert CheckState.FAILED in {check.state for check in verdict.checks}


def test_everything_that_is_wrong_is_listed_at_once(model: Path) -> None:
    (model / "evil.py").write_text("import os")
    (model / "README.md").write_bytes(b"\xff")
    edit(model / CONFIG, hidden_act="gelu")
    edit(model / TOKENIZER, truncation={})
    (model / "chat_template.jinja").write_text("{{")
    cut_weights(model)
    expected = {"evil.py", "README.md", CONFIG, TOKENIZER, "chat_template.jinja", WEIGHTS}
    assert reasons(inspect(str(model))).keys() == expected


def test_a_model_without_a_template_is_accepted_and_says_so(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    verdict = inspect(str(model))
    assert reasons(verdict) == {}
    assert not verdict.has_chat_template
