from pathlib import Path

import pytest

from dataplane.text.tokenizer import TextFailed
from dataplane.text.trial import try_template, try_tokenizer
from tests.text import tokenizer_files


def test_good_ones_pass(tmp_path: Path) -> None:
    for folder, vocab_size in (
        (tokenizer_files.byte_level(tmp_path / "bytes"), 320),
        (tokenizer_files.llama_2(tmp_path / "llama"), 320),
    ):
        try_tokenizer(folder, vocab_size)
        try_template(folder)


def test_tokens_that_the_model_does_not_have_are_seen(tmp_path: Path) -> None:
    with pytest.raises(TextFailed, match="the model has 100"):
        try_tokenizer(tokenizer_files.byte_level(tmp_path), 100)


def test_the_template_is_no_part_of_the_tokenizers_trial(tmp_path: Path) -> None:
    folder = tokenizer_files.byte_level(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ 1 // 0 }}")
    try_tokenizer(folder, 320)
    with pytest.raises(TextFailed, match="ZeroDivisionError"):
        try_template(folder)


def test_a_model_without_a_template_has_nothing_to_try(tmp_path: Path) -> None:
    folder = tokenizer_files.byte_level(tmp_path)
    (folder / "chat_template.jinja").unlink()
    try_template(folder)


def test_a_bomb_has_less_time_than_in_serving(tmp_path: Path) -> None:
    folder = tokenizer_files.byte_level(tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(TextFailed, match=r"more than 0\.4 s"):
        try_template(folder)
