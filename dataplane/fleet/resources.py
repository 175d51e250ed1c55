"""What this node has: memory and devices, as the kernel tells, and the control group where it allows less."""

import os
from functools import cache
from pathlib import Path

from dataplane.contracts.replica import Device, NodeReport
from dataplane.fleet.plan import Policy

_MEMINFO = Path("/proc/meminfo")
_CPUINFO = Path("/proc/cpuinfo")
_CGROUP = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """Return the memory that this node may use."""
    total_bytes = _meminfo("MemTotal")
    limit_bytes = _cgroup("memory.max")
    return total_bytes if limit_bytes is None else min(total_bytes, limit_bytes)


def available_bytes() -> int:
    """Return the memory that can be had now without swapping."""
    available = _meminfo("MemAvailable")
    limit_bytes, used_bytes = _cgroup("memory.max"), _cgroup("memory.current")
    if limit_bytes is None or used_bytes is None:
        return available
    return min(available, max(0, limit_bytes - used_bytes))


def report(policy: Policy) -> NodeReport:
    """Return what the control plane is told of this node."""
    total_bytes = memory_bytes()
    cores = len(os.sched_getaffinity(0))
    return NodeReport(
        memory_bytes=total_bytes,
        available_bytes=available_bytes(),
        devices=(Device(kind="cpu", name=f"{_cpu_name()}, {cores} cores", memory_bytes=total_bytes),),
        asleep_budget_bytes=policy.asleep_budget_bytes,
        warm_idle_floor=policy.warm_idle_floor,
        max_processes=policy.max_processes,
    )


def _meminfo(field: str) -> int:
    """Return a field of proc_meminfo(5) in bytes; 0 where the kernel has none of that name."""
    for line in _MEMINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


def _cgroup(file: str) -> int | None:
    """Return a figure of control group 2; None where it sets no limit or is not mounted."""
    try:
        text = (_CGROUP / file).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


@cache
def _cpu_name() -> str:
    for line in _CPUINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "CPU"
