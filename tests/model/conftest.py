"""The real model, and its weights as they are packed: converted once for all tests of this folder."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bundled_dir() -> Path:
    home = Path(os.environ.get("PAGODA_HOME", Path(__file__).parents[2] / "var"))
    folder = Path(os.environ.get("PAGODA_MODEL_DIR", home / "models" / "smollm2-135m-instruct"))
    if not (folder / "config.json").is_file():
        pytest.fail(f"the bundled model is not at {folder}: run `make model`, or set PAGODA_MODEL_DIR to its folder")
    return folder


@pytest.fixture(scope="session")
def bundled_runtime_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")
