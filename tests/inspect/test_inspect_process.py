import json
import subprocess
import sys
from pathlib import Path

import pytest

from dataplane.contracts import verdict as contract
from dataplane.contracts.verdict import Verdict
from tests.text import tokenizer_files


def judge(folder: Path, *options: str) -> tuple[int, Verdict | None, str]:
    """Run the program as a caller does: no environment, another working folder."""
    command = [sys.executable, "-I", "-m", "dataplane.inspect", str(folder), *options]
    done = subprocess.run(command, capture_output=True, env={}, cwd="/", timeout=120, check=False)
    return done.returncode, contract.decode(done.stdout) if done.stdout else None, done.stderr.decode()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tokenizer_files.byte_level(tmp_path / "model")


def test_accepted_is_0_refused_is_1_and_used_wrongly_is_2(model: Path) -> None:
    code, verdict, _ = judge(model)
    assert code == 0
    assert verdict is not None
    assert verdict.refusals == ()
    (model / "evil.py").write_text("x")
    code, verdict, _ = judge(model)
    assert code == 1
    assert verdict is not None
    assert verdict.refusals[0].file == "evil.py"
    code, verdict, said = judge(model / "nothing")
    assert (code, verdict) == (2, None)
    assert "cannot read the folder" in said
    assert judge(model, "--no-such-option")[0] == 2


def header_bomb(body: bytes) -> bytes:
    return len(body).to_bytes(8, "little") + body


BOMBS: dict[str, tuple[str, bytes]] = {
    "70 MB of header": ("model.safetensors", header_bomb(b'{"a":"' + b"x" * 70_000_000 + b'"}')),
    "8 MiB of lists": ("model.safetensors", header_bomb(b'{"a":[' + b"[]," * 2_700_000 + b"1]}")),
    "8 MiB of objects": ("model.safetensors", header_bomb(b'{"a":[' + b"{}," * 2_700_000 + b"1]}")),
    "8 MiB of nesting": ("model.safetensors", header_bomb(b'{"a":' + b"[" * 8_000_000)),
    "8 MiB of keys": ("model.safetensors", header_bomb(b"{" + b'"":0,' * 1_600_000 + b'"":0}')),
    "33 MB of tokenizer": ("tokenizer.json", b'{"a":"' + b"x" * 34_000_000 + b'"}'),
    "32 MiB of lists": ("tokenizer.json", b'{"a":[' + b"[]," * 11_000_000 + b"1]}"),
    "numbers": ("tokenizer.json", b'{"a":[' + b"1," * 16_000_000 + b"1]}"),
    "template of brackets": ("chat_template.jinja", b"{{" + b"(" * 250_000),
    "template of braces": ("chat_template.jinja", b"{{x}}" * 50_000 + b"{%"),
}


@pytest.mark.parametrize(("name", "content"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_within_512_mib(model: Path, name: str, content: bytes) -> None:
    (model / name).write_bytes(content)
    code, verdict, said = judge(model, "--memory-mb", "512", "--cpu-seconds", "20")
    assert code == 1, said
    assert verdict is not None
    assert verdict.refusals


def test_settings_full_of_junk_are_harmless(model: Path) -> None:
    (model / "tokenizer_config.json").write_bytes(b'{"a":[' + b"[]," * 1_300_000 + b"1]}")
    assert judge(model, "--memory-mb", "512", "--cpu-seconds", "20")[0] == 0


def test_the_verdict_is_one_line_of_json(model: Path) -> None:
    command = [sys.executable, "-I", "-m", "dataplane.inspect", str(model)]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    assert output.count(b"\n") == 1
    assert json.loads(output)["files"]


def test_the_bundled_model_is_accepted() -> None:
    if (tokenizer_files.BUNDLED / "config.json").exists():
        code, verdict, said = judge(tokenizer_files.BUNDLED.resolve())
        assert code == 0, said
        assert verdict is not None
        assert verdict.num_parameters == 134_515_008
