import os
from pathlib import Path
from typing import Any

import pytest

from dataplane.contracts.verdict import CHECKS, CheckState, Progress, Verdict, version_digest
from dataplane.inspect import checklist
from dataplane.inspect import folder as folder_module
from dataplane.inspect.folder import FolderError
from dataplane.inspect.inspection import inspect
from dataplane.inspect.names import CHAT_TEMPLATE, CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, WEIGHTS
from tests.hostile.case import Change, change, edit, remove, write
from tests.hostile.weights_cases import cut, element, split_weights
from tests.text import tokenizer_files
from tests.tiny_models import make_tiny_llama


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tokenizer_files.byte_level(tmp_path / "model")


def reasons(verdict: Verdict) -> dict[str, str]:
    assert all(refusal.mend for refusal in verdict.refusals)
    return {refusal.file: refusal.reason for refusal in verdict.refusals}


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


WRONG: dict[str, tuple[Change, str, str, str]] = {
    "no tokenizer": (remove(TOKENIZER), TOKENIZER, "missing", "files"),
    "document of bytes": (write("README.md", b"\xff\xfe\x00"), "README.md", "UTF-8", "documents"),
    "absurd config": (change(CONFIG, num_hidden_layers=10**9), CONFIG, "num_hidden_layers", "config"),
    "end of text out of range": (
        change(GENERATION_CONFIG, eos_token_id=10**6), GENERATION_CONFIG, "eos_token_id", "config",
    ),
    "weights of bytes": (write(WEIGHTS, bytes(99)), WEIGHTS, "does not fit", "weights"),
    "more layers than weights": (change(CONFIG, num_hidden_layers=3), "", "lack", "tensors"),
    "fewer layers than weights": (change(CONFIG, tie_word_embeddings=True), "", "ties", "tensors"),
    "another vocabulary": (change(CONFIG, vocab_size=321), "", "shape", "tensors"),
    "tokens without embeddings": (change(CONFIG, vocab_size=319), TOKENIZER, "embeddings", "tokenizer"),
    "wrong template": (write(CHAT_TEMPLATE, "{% for"), CHAT_TEMPLATE, "template", "chat_template"),
    "no number": (element("BF16", 0x7FC0), "model-00002-of-00002.safetensors", "NaN", "finite"),
}  # fmt: skip


@pytest.mark.parametrize(("break_it", "file", "reason", "check"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named_with_its_file_and_its_check(
    model: Path, break_it: Change, file: str, reason: str, check: str
) -> None:
    break_it(model)
    verdict = inspect(str(model))
    assert reason in reasons(verdict)[file]
    assert verdict.files == ()
    failed = next(line for line in verdict.checks if line.name == check)
    assert failed.state is CheckState.FAILED
    assert reason in failed.reason
    assert failed.mend


def test_a_checks_reason_says_how_many_more_there_are(model: Path) -> None:
    for name in ("a.py", "b.bin", "c.zip"):
        (model / name).write_bytes(b"x")
    first = inspect(str(model)).checks[0]
    assert first.reason == "a.py: no code of a model folder is ever run, and 2 more"


def test_news_says_which_check_is_at_work_and_how_it_ended(model: Path) -> None:
    news: list[Progress] = []
    verdict = inspect(str(model), news.append)
    begun = [progress.check for progress in news if progress.ended is None]
    ended = [progress.ended for progress in news if progress.ended is not None]
    assert begun == [check.name for check in ended]
    assert tuple(ended) == verdict.checks[: len(ended)]


def test_news_of_a_long_scan_counts_its_bytes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checklist, "_NEWS_INTERVAL_S", 0.0)
    news: list[Progress] = []
    inspect(str(model), news.append)
    counts = [progress for progress in news if progress.total_bytes]
    size_bytes = (model / WEIGHTS).stat().st_size
    assert {progress.total_bytes for progress in counts} == {size_bytes}
    assert counts[-1].done_bytes == size_bytes
    assert [progress.done_bytes for progress in counts] == sorted(progress.done_bytes for progress in counts)


def test_everything_that_is_wrong_is_listed_at_once(model: Path) -> None:
    (model / "evil.py").write_text("import os")
    (model / "README.md").write_bytes(b"\xff")
    edit(model / CONFIG, hidden_act="gelu")
    edit(model / TOKENIZER, truncation={})
    (model / "chat_template.jinja").write_text("{{")
    cut(WEIGHTS)(model)
    expected = {"evil.py", "README.md", CONFIG, TOKENIZER, "chat_template.jinja", WEIGHTS}
    assert reasons(inspect(str(model))).keys() == expected


def test_a_model_without_a_template_is_accepted_and_says_so(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    verdict = inspect(str(model))
    assert reasons(verdict) == {}
    assert not verdict.has_chat_template
