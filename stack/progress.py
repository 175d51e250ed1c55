"""What a command shows while it works."""

import shutil
import sys
import time


class Progress:
    """One line a step. On a terminal the line of the running step is rewritten; elsewhere only changes are printed."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._began = self._step_began = time.monotonic()
        self._shown = ""

    def waiting(self, text: str, detail: str = "") -> None:
        """Show what is waited for now; ``detail``, which changes all the time, is for a terminal only."""
        line = f"  … {text} {detail}".rstrip() if self._terminal else f"  … {text}"
        if line == self._shown:
            return
        self._shown = line
        if self._terminal:
            columns = shutil.get_terminal_size().columns  # a line that wraps could not be rewritten
            print(f"\r\033[K{line[: columns - 1]}", end="", flush=True)
        else:
            print(line, flush=True)

    def done(self, text: str) -> None:
        """Close the step with its result."""
        seconds = time.monotonic() - self._step_began
        self._step_began, self._shown = time.monotonic(), ""
        print(f"{chr(13) + chr(27) + '[K' if self._terminal else ''}  ✓ {text} ({seconds:.1f} s)", flush=True)

    @property
    def total_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began
