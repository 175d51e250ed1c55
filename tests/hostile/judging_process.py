"""Judges the folders named on its input, one a line: what ``python -m dataplane.inspect`` does, without starting again.

A line of output for each: the verdict, the processor time of its children in ms, and their most memory so far in MiB.
That one process outlives a whole corpus is part of what the corpus shows.
"""

import gc
import resource
import sys

import msgspec

from dataplane import sandbox
from dataplane.inspect.judging import judge

LIMITS = sandbox.Limits(memory_bytes=512 * 1024 * 1024, cpu_s=2, open_files=256)


def main() -> None:
    gc.disable()  # as the command line does
    before_s = 0.0
    for line in sys.stdin:
        verdict = judge(line.rstrip("\n"), LIMITS, lambda _news: None)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s = usage.ru_utime + usage.ru_stime
        answer = (verdict, round((used_s - before_s) * 1000), usage.ru_maxrss // 1024)
        before_s = used_s
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
