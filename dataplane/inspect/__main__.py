"""``python -m dataplane.inspect DIR``: print the verdict on a model folder as one JSON object.

Exit codes: 0 accepted, 1 refused, 2 used wrongly (no such folder), 3 no verdict (the inspector itself broke down).
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable

import msgspec

from dataplane import sandbox
from dataplane.inspect.folder import FolderError, folder_bytes
from dataplane.inspect.judging import NoVerdict, judge

_DEFAULT_MEMORY_MB = 512
_CPU_S = 30
_HASHED_BYTES_PER_S = 50_000_000
_OPEN_FILES = 256


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m dataplane.inspect", description="Judge a model folder and print the verdict as JSON."
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--memory-mb", type=int, default=_DEFAULT_MEMORY_MB, help="limit of address space")
    parser.add_argument("--cpu-seconds", type=int, help="limit of processor time; by default it follows the size")
    parser.add_argument("--progress-fd", type=int, help="descriptor that gets news of each check, a JSON object a line")
    arguments = parser.parse_args()
    gc.disable()  # nothing here is cyclic, and a file of a million lists would be walked again and again
    try:
        # Half a minute, and what a slow digest of the files takes.
        cpu_s = arguments.cpu_seconds or _CPU_S + folder_bytes(arguments.folder) // _HASHED_BYTES_PER_S
        limits = sandbox.Limits(arguments.memory_mb * 1024 * 1024, cpu_s, _OPEN_FILES)
        verdict = judge(arguments.folder, limits, _relay(arguments.progress_fd))
    except FolderError as error:
        print(error, file=sys.stderr)
        return 2
    except NoVerdict as error:
        print(error, file=sys.stderr)
        return 3
    sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    sys.stdout.buffer.flush()
    return 1 if verdict.refusals else 0


def _relay(descriptor: int | None) -> Callable[[bytes], None]:
    def relay(line: bytes) -> None:
        nonlocal descriptor
        try:
            if descriptor is not None:
                os.write(descriptor, line + b"\n")  # far shorter than a pipe takes at once
        except OSError:  # nobody reads it any more: the verdict is what counts
            descriptor = None

    return relay


if __name__ == "__main__":
    sys.exit(main())
