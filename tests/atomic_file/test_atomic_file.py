import os
import stat
from pathlib import Path

import pytest

from dataplane import atomic_file


def test_a_written_file_is_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "made" / "state.json"
    atomic_file.write(path, b"one")
    atomic_file.write(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["state.json"]


def test_a_write_that_fails_leaves_the_old_content_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    atomic_file.write(path, b"good")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_file.write(path, b"bad")
    assert path.read_bytes() == b"good"
    assert os.listdir(tmp_path) == ["state.json"]
