from pathlib import Path

import pytest

from dataplane.contracts.catalog import Share
from dataplane.contracts.parallel import Parallel
from dataplane.worker import settings
from dataplane.worker.settings import SettingsError


def test_the_tenants_file_gives_each_its_share_and_defaults_for_what_is_left_out() -> None:
    shares = settings.read_tenants(
        b'{"acme": {"guarantee_tokens": 100, "cap_tokens": 200, "weight": 3}, "evil": {"cap_tokens": null}}'
    )
    assert shares == {"acme": Share(100, 200, 3), "evil": Share(0, None, 1)}


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"a": {}, "a": {}}', "twice"),
        (b'{"a": {"guaranteed": 1}}', "guaranteed"),
        (b'{"a": {"cache_epoch": 1}}', "cache_epoch"),  # the control plane counts it
        (b'{"a": {"weight": 0}}', "'a'"),
        (b'{"a": {"weight": 1.5}}', "weight"),
        (b'{"a": {"guarantee_tokens": -1}}', "'a'"),
        (b'{"a": {"cap_tokens": 0}}', "'a'"),
        (b'{"a": {"cap_tokens": 5, "guarantee_tokens": 6}}', "below guarantee"),
        (b'{"": {}}', "''"),
        (b'{"a": []}', "a"),
    ],
)
def test_a_tenants_file_that_cannot_be_used_says_why(raw: bytes, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        settings.read_tenants(raw)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--port"),
        (["--port", "1"], "--control-socket"),
        (["--port", "1", "--model", "/no/such/folder"], "/no/such/folder"),
        (["--port", "1", "--control-socket", "/tmp/" + "x" * 110], "107 bytes"),
        (["--port", "1", "--control-socket", "/c", "--host", "0.0.0.0", "--trust-tenant-header"], "loopback"),
        (["--port", "1", "--control-socket", "/c", "--tenants", "/no/such/file"], "/no/such/file"),
        (["--port", "1", "--control-socket", "/c", "--tensor-parallel", "2"], "give --model"),
    ],
)
def test_a_command_line_that_contradicts_itself_says_what_to_change(arguments: list[str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        settings.parse(arguments)


def test_engine_settings_come_from_the_command_line(tmp_path: Path) -> None:
    parsed = settings.parse([
        "--port", "0", "--model", str(tmp_path), "--dtype", "int8", "--kv-dtype", "bf16", "--device", "cpu",
        "--max-num-seqs", "4", "--max-model-len", "64", "--kv-memory-mb", "2", "--block-size", "16",
        "--no-prefix-cache", "--queue-limit", "7",
    ])  # fmt: skip
    engine = parsed.engine
    assert parsed.queue_limit == 7
    assert (engine.dtype, engine.kv_dtype, engine.device, engine.max_num_seqs) == ("int8", "bf16", "cpu", 4)
    assert (engine.max_model_len, engine.kv_memory_mb, engine.block_size, engine.prefix_cache) == (64, 2, 16, False)
    assert parsed.queue_wait_s is None


def test_ranks_and_stages_come_from_the_command_line_and_are_one_by_default(tmp_path: Path) -> None:
    command = ["--port", "0", "--model", str(tmp_path)]
    assert settings.parse(command).parallel == Parallel(1, 1)
    parsed = settings.parse([*command, "--tensor-parallel", "2", "--pipeline-parallel", "3"])
    assert parsed.parallel == Parallel(2, 3)
