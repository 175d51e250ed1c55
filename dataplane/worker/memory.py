"""How much memory of this machine some processes hold that nothing but their end, or sleep, gives back."""

from pathlib import Path


def anonymous_bytes(*pids: int) -> int:
    """Return the anonymous resident bytes of those of ``pids`` that run (``RssAnon`` of proc_pid_status(5)).

    Files that are mapped, libraries and weights among them, are shared and the kernel's to drop.
    """
    return sum(_of(pid) for pid in pids if pid)


def children_of(pid: int) -> list[int]:
    """Return the processes that the main thread of ``pid`` has started; none where the kernel keeps no list of them."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _of(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
