"""``python leash.py PARENT_PID PROGRAM ARG...`` becomes PROGRAM, and is killed by the kernel when its parent dies.

A program of its own, so that nothing runs between fork and exec in a process that has threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, check that the parent did not die before that, exec."""
    parent_pid, program = int(sys.argv[1]), sys.argv[2]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        sys.exit("the fleet died while this worker started")
    os.execv(program, sys.argv[2:])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
