"""Tries one grammar in a process of its own: ``python -m dataplane.text.grammar_trial`` reads it from standard input.

It writes why the grammar cannot be used, or nothing. The grammar is compiled and followed for a few steps, byte by
byte, under limits: what takes too much ends this process, before any other has seen it.
"""

import signal
import sys

from dataplane import sandbox
from dataplane.text.grammar import MAX_GRAMMAR_BYTES
from dataplane.text.matcher import MatcherError, TokenTable

CPU_S = 2
_MEMORY_BYTES = 768 * 1024 * 1024
_OPEN_FILES = 16
_STEPS = 64
_END = 256  # a token behind those of the bytes


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent
    sandbox.die_with_parent()
    sandbox.enter(sandbox.Limits(memory_bytes=_MEMORY_BYTES, cpu_s=CPU_S, open_files=_OPEN_FILES))
    grammar = sys.stdin.buffer.read(MAX_GRAMMAR_BYTES + 1).decode()
    try:
        _follow(grammar)
    except MatcherError as error:
        sys.stdout.write(str(error))


def _follow(grammar: str) -> None:
    """Go some steps into ``grammar``, each by another of the bytes that it allows.

    Raises:
        MatcherError: it cannot be used.
    """
    matcher = TokenTable([*(bytes([byte]) for byte in range(_END)), b""], [_END]).compile(grammar)
    for step in range(_STEPS):
        bits = int.from_bytes(matcher.allowed(), "little")
        allowed = [token_id for token_id in range(_END) if bits >> token_id & 1]
        if not allowed:
            return
        matcher.accept([allowed[step % len(allowed)]])


if __name__ == "__main__":
    main()
