"""The tiny models that other tests serve are deterministic and readable by the field's own tools."""

from pathlib import Path

from tiny_models import make_tiny_llama
from tokenizers import Tokenizer


def test_the_same_arguments_write_the_same_files(tmp_path: Path) -> None:
    first, second = make_tiny_llama(tmp_path / "a", seed=1), make_tiny_llama(tmp_path / "b", seed=1)
    other = make_tiny_llama(tmp_path / "c", seed=2)
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_the_tokenizer_round_trips_any_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(make_tiny_llama(tmp_path) / "tokenizer.json"))
    text = "the 12 é 🙂\n<|im_end|>"
    token_ids = tokenizer.encode(text).ids
    assert token_ids[-1] == 2
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == text
