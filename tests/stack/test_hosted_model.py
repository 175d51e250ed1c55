"""Any folder that a person names for the first model: its name, and what is wrong with it, before anything starts."""

import shutil
from pathlib import Path

import pytest

from controlplane.registry.models import NAME_PATTERN
from stack import hosted_model
from stack.home import _MODEL_NAME, Home, StackError
from stack.progress import Progress
from tests.tiny_models import make_tiny_llama


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("PAGODA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PAGODA_MODEL_DIR", raising=False)
    monkeypatch.delenv("PAGODA_MODEL_NAME", raising=False)
    return Home.open()


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("My_Model-6L", "my_model-6l"),
        ("TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b-chat-v1.0"),
        ("a model (final)", "a-model-final"),
        ("models--TinyLlama--TinyLlama-1.1B/snapshots/fe8a4ea1", "tinyllama-1.1b"),
        ("x" * 80, "x" * 64),
    ],
)
def test_a_folder_gives_the_model_a_lawful_name(
    home: Home, monkeypatch: pytest.MonkeyPatch, folder: str, name: str
) -> None:
    monkeypatch.setenv("PAGODA_MODEL_DIR", f"/models/{folder}/")
    assert home.model_name == name


def test_a_name_that_a_person_chose_is_taken_or_refused_but_never_changed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGODA_MODEL_DIR", "/models/%%%")
    with pytest.raises(StackError, match="PAGODA_MODEL_NAME"):
        _ = home.model_name
    monkeypatch.setenv("PAGODA_MODEL_NAME", "mine")
    assert home.model_name == "mine"
    monkeypatch.setenv("PAGODA_MODEL_NAME", "Mine")
    with pytest.raises(StackError, match="'Mine' cannot be the name"):
        _ = home.model_name


def test_a_lawful_name_is_what_the_registry_takes() -> None:
    assert f"^{_MODEL_NAME.pattern}$" == NAME_PATTERN


def test_a_folder_that_can_be_served_is_named_in_one_line(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAGODA_MODEL_DIR", str(make_tiny_llama(tmp_path / "Tiny")))
    hosted_model.require(home, Progress())
    assert "can be served, as tiny" in capsys.readouterr().out


def test_all_that_is_wrong_with_a_folder_is_said_at_once(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_llama(tmp_path / "tiny")
    (model / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    (model / "tokenizer.json").unlink()
    monkeypatch.setenv("PAGODA_MODEL_DIR", str(model))
    with pytest.raises(StackError) as refusal:
        hosted_model.require(home, Progress())
    first, *reasons = str(refusal.value).splitlines()
    assert first == f"{model} cannot be served:"
    assert {reason.split(":")[0].strip() for reason in reasons} == {"pytorch_model.bin", "tokenizer.json"}
    monkeypatch.setenv("PAGODA_MODEL_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(StackError, match="no folder of this machine"):
        hosted_model.require(home, Progress())


def test_a_snapshot_of_the_hugging_face_cache_can_be_served(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = make_tiny_llama(tmp_path / "models--a--Tiny" / "blobs")
    snapshot = tmp_path / "models--a--Tiny" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(Path("../../blobs") / blob.name)
    monkeypatch.setenv("PAGODA_MODEL_DIR", str(snapshot))
    hosted_model.require(home, Progress())
    shutil.rmtree(blobs)
    with pytest.raises(StackError, match=r"config\.json: it is a link"):
        hosted_model.require(home, Progress())
