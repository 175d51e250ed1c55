"""What a process does to itself before it reads a stranger's file: resource limits and a system-call filter.

Two walls. Resource limits (``setrlimit``) end a process that takes too much. A seccomp filter leaves a process that a
parser bug has taken over with the descriptors it holds: no new sockets, no programs, no files opened for writing, no
signals to others. The filter needs no privilege (``no_new_privs``) and exists on Linux on x86-64 and arm64; elsewhere
:func:`enter` says so by its return value and the limits are all there is.

Sources: ``seccomp(2)``, ``linux/filter.h`` (classic BPF), and the kernel's system-call tables of both machines.
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from typing import NamedTuple


class Limits(NamedTuple):
    """Limits of one process; ``cpu_s`` None is none, for a process that lives long and is watched from outside."""

    memory_bytes: int
    cpu_s: int | None
    open_files: int
    written_file_bytes: int = 0


def enter(limits: Limits) -> bool:
    """Apply ``limits`` and the filter to this process, for good. Call before a second thread starts.

    Returns:
        Whether the system-call filter is on.

    Raises:
        OSError: a limit cannot be set, since a lower one is in force already.
    """
    _lower(resource.RLIMIT_AS, limits.memory_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, limits.written_file_bytes)
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    if limits.cpu_s is not None:
        # SIGXCPU first, by which a parent knows this end from others; SIGKILL where it is blocked.
        _lower(resource.RLIMIT_CPU, limits.cpu_s, spare=1)
    return _filter_system_calls()


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _lower(kind: int, value: int, *, spare: int = 0) -> None:
    hard, before = value + spare, resource.getrlimit(kind)[1]
    if before != resource.RLIM_INFINITY:
        hard = min(hard, before)
    resource.setrlimit(kind, (min(value, hard), hard))


_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2

_RET_KILL_PROCESS = 0x8000_0000
_RET_ERRNO = 0x0005_0000
_RET_ALLOW = 0x7FFF_0000

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_IF_AT_LEAST = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_JUMP_IF_ANY_BIT = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K

_OFFSET_NUMBER, _OFFSET_MACHINE, _OFFSET_ARGS = 0, 4, 16  # struct seccomp_data
_X32_CALLS = 0x4000_0000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CLONE_THREAD = 0x0001_0000

_MACHINES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}  # column below, AUDIT_ARCH_*

_DENIED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "pidfd_send_signal": (424, 424),
    "setrlimit": (160, 164), "creat": (85, None), "truncate": (76, 45),
    "unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None), "rename": (82, None), "renameat": (264, 38),
    "renameat2": (316, 276), "mkdir": (83, None), "mkdirat": (258, 34), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "mknod": (133, None), "mknodat": (259, 33),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55),
    "lchown": (94, None), "fchownat": (260, 54), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "setns": (308, 268), "unshare": (272, 97), "bpf": (321, 280), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "perf_event_open": (298, 241),
}  # fmt: skip

# Calls whose flags cannot be read by a filter (they are behind a pointer): libc falls back to the older call.
_ABSENT: dict[str, tuple[int, int]] = {"clone3": (435, 435), "openat2": (437, 437)}


def _statement(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int, error: int) -> bytes:
    """If the call is ``number``, it fails with ``error``. Expects the call's number in the accumulator."""
    return _statement(_JUMP_IF_EQUAL, number, 0, 1) + _statement(_RETURN, _RET_ERRNO | error)


def _judge(number: int, argument: int, test: bytes) -> bytes:
    """If the call is ``number``, load the low word of ``argument`` and allow it when ``test`` is true, else EPERM."""
    return (
        _statement(_JUMP_IF_EQUAL, number, 0, 4)
        + _statement(_LOAD, _OFFSET_ARGS + 8 * argument)
        + test
        + _statement(_RETURN, _RET_ALLOW)
        + _statement(_RETURN, _RET_ERRNO | errno.EPERM)
    )


def _program(column: int, machine: int) -> bytes:
    def when_any(bits: int) -> bytes:
        return _statement(_JUMP_IF_ANY_BIT, bits, 0, 1)

    def when_none(bits: int) -> bytes:
        return _statement(_JUMP_IF_ANY_BIT, bits, 1, 0)

    own_process = _statement(_JUMP_IF_EQUAL, os.getpid(), 0, 1)
    parts = [
        _statement(_LOAD, _OFFSET_MACHINE) + _statement(_JUMP_IF_EQUAL, machine, 1, 0),
        _statement(_RETURN, _RET_KILL_PROCESS) + _statement(_LOAD, _OFFSET_NUMBER),
    ]
    if machine == _MACHINES["x86_64"][1]:
        parts.append(_statement(_JUMP_IF_AT_LEAST, _X32_CALLS, 0, 1) + _statement(_RETURN, _RET_KILL_PROCESS))
        parts.append(_judge(2, 1, when_none(_WRITING)))  # open
    parts += [
        _judge((257, 56)[column], 2, when_none(_WRITING)),  # openat
        _judge((56, 220)[column], 0, when_any(_CLONE_THREAD)),  # clone: threads, not processes
        _judge((234, 131)[column], 0, own_process),  # tgkill: abort() sends itself a signal
        _judge((302, 261)[column], 2, when_none(0xFFFF_FFFF)),  # prlimit64: reading limits only
    ]
    parts += [_refuse(numbers[column], errno.ENOSYS) for numbers in _ABSENT.values()]
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            parts.append(_refuse(number, errno.EPERM))
    return b"".join(parts) + _statement(_RETURN, _RET_ALLOW)


def _filter_system_calls() -> bool:
    known = _MACHINES.get(platform.machine())
    if platform.system() != "Linux" or known is None:
        return False
    program = _program(*known)
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: number of statements, then their address, aligned as C aligns a pointer.
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    fprog = ctypes.create_string_buffer(header, len(header))
    return _prctl(_PR_SET_NO_NEW_PRIVS, 1) and _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(fprog))


def _prctl(option: int, value: int, pointer: int = 0) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_ulong(value), ctypes.c_ulong(pointer), ctypes.c_ulong(0), ctypes.c_ulong(0))
    return bool(libc.prctl(ctypes.c_int(option), *arguments) == 0)
