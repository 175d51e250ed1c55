import faulthandler
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dataplane import sandbox
from dataplane.inspect import children
from dataplane.inspect.children import Ended, Tell

LIMITS = sandbox.Limits(memory_bytes=1 << 36, cpu_s=2, open_files=4096)


def run(work: object, *, limits: sandbox.Limits = LIMITS, deadline_s: float = 60) -> tuple[Ended, list[bytes]]:
    news: list[bytes] = []
    ended = children.run(work, limits, deadline_s=deadline_s, on_news=news.append, quiet=True)  # type: ignore[arg-type]
    return ended, news


def test_result_and_news_come_back_whole_and_in_order() -> None:
    def work(tell: Tell) -> bytes:
        for number in range(3):
            tell(b"x" * 100_000 + str(number).encode())
        return b"y" * 300_000

    ended, news = run(work)
    assert ended == Ended(b"y" * 300_000)
    assert [line[-1:] for line in news] == [b"0", b"1", b"2"]


def raising(error: BaseException) -> object:
    def work(_tell: Tell) -> bytes:
        raise error

    return work


def spinning(_tell: Tell) -> bytes:
    while True:
        pass


def sleeping(_tell: Tell) -> bytes:
    while True:
        time.sleep(1)


def aborting(_tell: Tell) -> bytes:
    faulthandler.disable()  # pytest's would print where
    os.abort()


def flooding(tell: Tell) -> bytes:
    tell(b"x" * (9 << 20))
    return b""


def test_what_a_child_dies_of_is_told_apart() -> None:
    one_second = LIMITS._replace(cpu_s=1)
    assert run(raising(MemoryError()))[0] == Ended(None, "takes more than 65536 MiB of memory", theirs=True)
    assert run(spinning, limits=one_second)[0] == Ended(None, "takes more than 1 s of processor time", theirs=True)
    assert run(sleeping, deadline_s=0.2)[0] == Ended(None, "takes more than 0.2 s", theirs=True)
    assert run(aborting)[0] == Ended(None, "ends its process (SIGABRT)", theirs=True)
    assert run(lambda _tell: os.kill(os.getpid(), 0))[0].result is None  # no signals, not even to itself
    assert run(raising(ValueError("ours")))[0] == Ended(None, "ended with exit code 70")


def test_a_child_that_floods_its_pipe_is_ended() -> None:
    assert run(flooding)[0].result is None


def test_a_child_is_in_the_sandbox() -> None:
    def work(_tell: Tell) -> bytes:
        with pytest.raises(PermissionError):
            os.fork()
        return b"fenced"

    assert run(work)[0].result == b"fenced"


def test_no_child_and_no_descriptor_is_left() -> None:
    before = len(psutil.Process().open_files()), psutil.Process().num_fds()
    for work in (lambda _tell: b"", raising(ValueError()), aborting):
        run(work)
    assert (len(psutil.Process().open_files()), psutil.Process().num_fds()) == before
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


_ORPHAN = """
import sys, time
from dataplane import sandbox
from dataplane.inspect import children

def work(tell):
    import os
    tell(str(os.getpid()).encode())
    while True:
        time.sleep(1)

limits = sandbox.Limits(1 << 30, None, 64)
children.run(work, limits, deadline_s=600, on_news=lambda line: print(line.decode(), flush=True))
"""


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-I", "-c", _ORPHAN], stdout=subprocess.PIPE, cwd=tmp_path)
    assert parent.stdout is not None
    with parent.stdout:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        assert child.wait(timeout=60) is None
