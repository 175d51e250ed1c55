"""``python -m dataplane.inspect DIR``: print the verdict on a model folder as one JSON object.

Exit codes: 0 accepted, 1 refused, 2 used wrongly (no such folder, too little memory to judge).
"""

import argparse
import gc
import os
import sys
from itertools import islice

import msgspec

from dataplane import sandbox
from dataplane.contracts.verdict import Refusal, Verdict
from dataplane.inspect.folder import MAX_FILES, FolderError
from dataplane.inspect.inspection import inspect

_DEFAULT_MEMORY_MB = 512
_CPU_S = 30
_HASHED_BYTES_PER_S = 50_000_000
_OPEN_FILES = 256
_OUTPUT_BYTES = 4 * 1024 * 1024


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m dataplane.inspect", description="Judge a model folder and print the verdict as JSON."
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--memory-mb", type=int, default=_DEFAULT_MEMORY_MB, help="limit of address space")
    parser.add_argument("--cpu-seconds", type=int, help="limit of processor time; by default it follows the size")
    arguments = parser.parse_args()
    limits = sandbox.Limits(
        memory_bytes=arguments.memory_mb * 1024 * 1024,
        cpu_s=arguments.cpu_seconds or _cpu_limit_s(arguments.folder),
        open_files=_OPEN_FILES,
        written_file_bytes=_OUTPUT_BYTES,
    )
    sandbox.enter(limits)
    gc.disable()  # nothing here is cyclic, and a file of a million lists would be walked again and again
    try:
        verdict = inspect(arguments.folder)
    except FolderError as error:
        print(error, file=sys.stderr)
        return 2
    except MemoryError:
        # Only a file made for it needs so much: every size is bounded, and real models stay far below the limit.
        reason = f"judging it takes more than {arguments.memory_mb} MiB of memory"
        verdict = Verdict(refusals=(Refusal(file="", reason=reason, mend="Make its JSON files smaller."),))
    sys.stdout.buffer.write(msgspec.json.encode(verdict) + b"\n")
    sys.stdout.buffer.flush()
    return 1 if verdict.refusals else 0


def _cpu_limit_s(path: str) -> int:
    """Half a minute, and what a slow digest of the files takes."""
    try:
        with os.scandir(path) as entries:
            size_bytes = sum(entry.stat(follow_symlinks=False).st_size for entry in islice(entries, MAX_FILES))
    except OSError:  # the inspection says what is wrong with it
        size_bytes = 0
    return _CPU_S + size_bytes // _HASHED_BYTES_PER_S


if __name__ == "__main__":
    sys.exit(main())
