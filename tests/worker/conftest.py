import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_models import make_tiny_llama
from worker_process import WorkerProcess


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", context_tokens=2048)


@pytest.fixture(scope="session")
def worker(tiny_model: Path) -> Iterator[WorkerProcess]:
    """One worker for every test that leaves it as it was.

    Its patience is for the one test that reads nothing: what others leave unread, the kernel's buffers take.
    """
    folder = Path(tempfile.mkdtemp(prefix="pgd-", dir="/tmp"))
    with WorkerProcess(folder, tiny_model, ["--client-patience-seconds", "0.5"]) as process:
        yield process
    shutil.rmtree(folder, ignore_errors=True)
