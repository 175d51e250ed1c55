import subprocess
import sys
from pathlib import Path

import pytest

ENTERED = """
import os, resource, signal, socket, subprocess, sys, threading
from dataplane import sandbox
assert sandbox.enter(sandbox.Limits(memory_bytes=1 << 29, cpu_s=2, open_files=40))
"""


def inside(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process that has entered the sandbox; it prints what it got to."""
    command = [sys.executable, "-I", "-c", ENTERED + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


FORBIDDEN = {
    "a socket": "socket.socket()",
    "a pair of sockets": "socket.socketpair()",
    "a program": "subprocess.run(['true'])",
    "an exec": "os.execv('/bin/true', ['true'])",
    "a process": "os.fork()",
    "a file for writing": "open(TARGET, 'w')",
    "a file for appending": "open(TARGET, 'a')",
    "a new file": "os.open(TARGET + '2', os.O_RDONLY | os.O_CREAT)",
    "a deletion": "os.unlink(TARGET)",
    "a move": "os.rename(TARGET, TARGET + '2')",
    "a folder": "os.mkdir(TARGET + '2')",
    "a link": "os.symlink('/etc/passwd', TARGET + '2')",
    "a mode": "os.chmod(TARGET, 0o777)",
    "a cut": "os.truncate(TARGET, 0)",
    "a signal": "os.kill(os.getppid(), 0)",
    "a higher limit": "resource.prlimit(0, resource.RLIMIT_AS, (-1, -1))",
}


@pytest.mark.parametrize("code", FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_a_reader_never_needs_is_not_permitted(tmp_path: Path, code: str) -> None:
    target = tmp_path / "target"
    target.write_text("untouched")
    outside = f"import os\nTARGET = {str(target)!r}\n"
    done = inside(outside + f"try:\n    {code}\nexcept PermissionError:\n    print('refused')\n")
    assert done.stdout == "refused\n", done.stderr
    assert target.read_text() == "untouched"
    assert list(tmp_path.iterdir()) == [target]


def test_reading_and_threads_go_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("read")
    code = f"print(open({str(tmp_path / 'file')!r}).read())\nt = threading.Thread(target=print, args=['thread'])\n"
    assert inside(code + "t.start()\nt.join()\n").stdout == "read\nthread\n"


def test_memory_has_a_limit() -> None:
    assert inside("try:\n    bytearray(1 << 30)\nexcept MemoryError:\n    print('enough')\n").stdout == "enough\n"


def test_processor_time_has_a_limit() -> None:
    assert inside("while True: pass\n").returncode < 0


def test_an_abort_still_ends_the_process() -> None:
    assert inside("os.abort()\n").returncode == -6


def test_outside_the_sandbox_all_of_it_is_permitted(tmp_path: Path) -> None:
    """The control: the refusals above come from the filter."""
    target = tmp_path / "target"
    target.write_text("here")
    code = f"import os, socket\nsocket.socket().close()\nos.unlink({str(target)!r})\nprint('done')"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "done\n"
    assert not target.exists()
