"""Loading converts once, attaches afterwards, mends damage, and refuses what it cannot run with a sentence."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from model_harness import generate, poisoned_runner
from tiny_models import make_tiny_llama, write_safetensors

from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.memory import weight_bytes
from dataplane.contracts.precision import QUANTISED, WEIGHTS
from dataplane.model.loader import LoadedModel, LoadError, load
from dataplane.model.packing import LAYOUT_VERSION

PROMPTS = [[5, 6, 7, 8], list(range(30, 50))]


class Phases:
    """Records progress, and that it only grows up to its total."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._last: dict[str, tuple[int, int]] = {}

    def __call__(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        before = self._last.get(phase, (0, total_bytes))
        assert before[0] < done_bytes <= total_bytes == before[1]
        self._last[phase] = done_bytes, total_bytes
        if phase not in self.seen:
            self.seen.append(phase)


def tokens(loaded: LoadedModel) -> list[list[int]]:
    return generate(poisoned_runner(loaded, 16), PROMPTS, 12, num_blocks=16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "model", seed=6)


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_a_second_load_converts_nothing_and_computes_the_same(folder: Path, tmp_path: Path, dtype: str) -> None:
    first, second = Phases(), Phases()
    settings = EngineSettings(dtype=dtype)
    one = load(folder, tmp_path / "runtime", settings, first, version_digest="ab12")
    two = load(folder, tmp_path / "runtime", settings, second, version_digest="ab12")
    assert first.seen == ["convert", "attach"]
    assert second.seen == ["attach"]
    assert tokens(one) == tokens(two)
    assert [path.name for path in (tmp_path / "runtime").iterdir()] == [f"ab12-{dtype}-{LAYOUT_VERSION}"]
    assert (one.dtype, one.kv_dtype) == (dtype, "fp16" if dtype in QUANTISED else dtype)
    blob_bytes = (tmp_path / "runtime" / f"ab12-{dtype}-{LAYOUT_VERSION}" / "weights.bin").stat().st_size
    assert weight_bytes(one.config, dtype) <= blob_bytes <= weight_bytes(one.config, dtype) + 4096


def test_the_version_digest_alone_finds_the_runtime_weights(folder: Path, tmp_path: Path) -> None:
    """A copy of the folder elsewhere is the same version."""
    load(folder, tmp_path / "runtime", EngineSettings(), Phases(), version_digest="ab12")
    again = Phases()
    load(
        Path(shutil.copytree(folder, tmp_path / "copy")),
        tmp_path / "runtime",
        EngineSettings(),
        again,
        version_digest="ab12",
    )
    assert again.seen == ["attach"]


def test_without_a_digest_changed_weights_are_converted_again(folder: Path, tmp_path: Path) -> None:
    before = load(folder, tmp_path / "runtime", EngineSettings(), Phases())
    unchanged, changed = Phases(), Phases()
    load(folder, tmp_path / "runtime", EngineSettings(), unchanged)
    assert unchanged.seen == ["attach"]
    make_tiny_llama(folder, seed=7)
    after = load(folder, tmp_path / "runtime", EngineSettings(), changed)
    assert "convert" in changed.seen
    assert tokens(before) != tokens(after)


@pytest.mark.parametrize("damage", ["header_cut", "weights_cut", "bit_flip", "missing"])
def test_damaged_runtime_weights_are_made_again(folder: Path, tmp_path: Path, damage: str) -> None:
    expected = tokens(load(folder, tmp_path / "runtime", EngineSettings(), Phases(), version_digest="ab12"))
    runtime = tmp_path / "runtime" / f"ab12-fp32-{LAYOUT_VERSION}"
    header, weights = runtime / "header.json", runtime / "weights.bin"
    if damage == "header_cut":
        header.write_bytes(header.read_bytes()[:-1])
    elif damage == "weights_cut":
        weights.write_bytes(weights.read_bytes()[:-64])
    elif damage == "bit_flip":
        raw = bytearray(weights.read_bytes())
        raw[1000] ^= 1
        weights.write_bytes(raw)
    else:
        weights.unlink()
    again = load(folder, tmp_path / "runtime", EngineSettings(), lambda *_: None, version_digest="ab12")
    assert tokens(again) == expected
    settled = Phases()
    load(folder, tmp_path / "runtime", EngineSettings(), settled, version_digest="ab12")
    assert settled.seen == ["attach"]


def test_a_digest_used_for_two_models_never_serves_the_wrong_one(folder: Path, tmp_path: Path) -> None:
    load(folder, tmp_path / "runtime", EngineSettings(), Phases(), version_digest="ab12")
    other = make_tiny_llama(tmp_path / "other", num_layers=1)
    loaded = load(other, tmp_path / "runtime", EngineSettings(), Phases(), version_digest="ab12")
    assert loaded.config.num_layers == 1
    assert loaded.program.attended_layers == 1


def test_the_context_is_the_models_or_less(folder: Path, tmp_path: Path) -> None:
    assert load(folder, tmp_path / "r", EngineSettings(), Phases()).context_tokens == 512
    assert load(folder, tmp_path / "r", EngineSettings(max_model_len=100), Phases()).context_tokens == 100
    with pytest.raises(LoadError, match=r"513.*512"):
        load(folder, tmp_path / "r", EngineSettings(max_model_len=513), Phases())


def test_end_tokens_of_the_generation_config_count(folder: Path, tmp_path: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    assert load(folder, tmp_path / "r", EngineSettings(), Phases()).config.eos_token_ids == (2, 0)


@pytest.mark.parametrize(
    ("settings", "digest", "why"),
    [
        (EngineSettings(device="cuda"), "", "torch finds no GPU here"),
        (EngineSettings(device="tpu"), "", "device 'tpu'"),
        (EngineSettings(dtype="int3"), "", "dtype 'int3'"),
        (EngineSettings(kv_dtype="int4"), "", "kv_dtype 'int4'"),
        (EngineSettings(), "../../etc", "not a version digest"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(
    folder: Path, tmp_path: Path, settings: EngineSettings, digest: str, why: str
) -> None:
    with pytest.raises(LoadError, match=why):
        load(folder, tmp_path / "r", settings, Phases(), version_digest=digest)


def test_a_folder_that_cannot_run_is_refused_with_the_reason(folder: Path, tmp_path: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("silu", "gelu"))
    with pytest.raises(LoadError, match="hidden_act"):
        load(folder, tmp_path / "r", EngineSettings(), Phases())
    (folder / "config.json").write_text(config)
    write_safetensors(folder / "model.safetensors", {"a": np.zeros((2, 2), dtype=np.float32)})
    with pytest.raises(LoadError, match="lack"):
        load(folder, tmp_path / "r", EngineSettings(), Phases())
    (folder / "config.json").unlink()
    with pytest.raises(LoadError, match=r"config\.json"):
        load(folder, tmp_path / "r", EngineSettings(), Phases())
    assert not (tmp_path / "r").exists()


def test_weights_too_large_for_fp16_are_refused_and_run_otherwise(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path / "model", num_layers=1)
    raw = bytearray((folder / "model.safetensors").read_bytes())
    first_weight = 8 + struct.unpack_from("<Q", raw)[0]
    raw[first_weight : first_weight + 4] = np.float32(1e6).tobytes()
    (folder / "model.safetensors").write_bytes(raw)
    with pytest.raises(LoadError, match="65504"):
        load(folder, tmp_path / "r", EngineSettings(dtype="fp16"), Phases())
    for dtype in ("fp32", "bf16", "int8"):
        load(folder, tmp_path / "r", EngineSettings(dtype=dtype), Phases())


def test_a_pool_larger_than_the_address_space_is_refused(folder: Path, tmp_path: Path) -> None:
    loaded = load(folder, tmp_path / "r", EngineSettings(), Phases())
    with pytest.raises(LoadError, match="lower --kv-memory-mb"):
        loaded.make_runner(1 << 45, 8, 64, 8)
