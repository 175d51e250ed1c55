"""The sandboxed process that says which tokens a grammar allows next: ``python -m dataplane.text.masker --fd N ...``.

A grammar is a tenant's, and the library ends its process where memory runs out: so this is neither the engine nor the
child that every prompt passes through. It reads frames of ``ToMasker`` from the socket N and answers with
``FromMasker``. Grammars are compiled in a second thread, with the interpreter's lock released, so that a long one does
not keep the masks of others.
"""

import argparse
import contextlib
import signal
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from dataplane import sandbox
from dataplane.contracts.masking import (
    Advance,
    Compile,
    Compiled,
    End,
    Forget,
    FromMasker,
    Mask,
    MaskerReady,
    ToMasker,
)
from dataplane.contracts.wire import FrameReader, frame
from dataplane.text.matcher import Matcher, MatcherError, TokenTable
from dataplane.text.tokenizer import ModelTokenizer, TextFailed

DEFAULT_MEMORY_BYTES = 1024 * 1024 * 1024
_OPEN_FILES = 32


class _Masker:
    """One conversation with the engine, over a blocking socket."""

    def __init__(self, connection: socket.socket, table: TokenTable) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._table = table
        self._compiling = ThreadPoolExecutor(max_workers=1)
        self._grammars: dict[int, Future[Matcher]] = {}
        self._sequences: dict[int, Matcher] = {}

    def run(self) -> None:
        """Answer until the engine closes the socket."""
        reader: FrameReader[ToMasker] = FrameReader(ToMasker)
        self.send(MaskerReady())
        while data := self._connection.recv(1 << 16):
            for message in reader.feed(data):
                self._take(message)

    def send(self, message: FromMasker) -> None:
        """Write one frame, from any thread."""
        with self._sending:
            self._connection.sendall(frame(message))

    def _take(self, message: ToMasker) -> None:
        match message:
            case Compile(grammar_id, grammar):
                self._grammars[grammar_id] = self._compiling.submit(self._compile, grammar_id, grammar)
            case Forget(grammar_id):
                self._grammars.pop(grammar_id, None)
            case Advance():
                self.send(self._mask(message))
            case End(sequence):
                self._sequences.pop(sequence, None)

    def _compile(self, grammar_id: int, grammar: str) -> Matcher:
        try:
            matcher = self._table.compile(grammar)
        except MatcherError as error:
            self.send(Compiled(grammar_id=grammar_id, error=str(error)))
            raise
        self.send(Compiled(grammar_id=grammar_id))
        return matcher

    def _mask(self, message: Advance) -> Mask:
        try:
            matcher = self._sequences.get(message.sequence)
            if matcher is None:
                matcher = self._sequences[message.sequence] = self._grammars[message.grammar_id].result().copy()
            if message.token_ids:
                matcher.accept(message.token_ids)
            return Mask(sequence=message.sequence, bits=matcher.allowed())
        except MatcherError as error:
            return Mask(sequence=message.sequence, bits=b"", error=str(error))


def main() -> None:
    """Run the command line; it ends when the engine closes the socket."""
    parser = argparse.ArgumentParser(prog="python -m dataplane.text.masker", description="The masking process.")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the Unix socket to the engine")
    parser.add_argument("--model-dir", type=Path, required=True, help="folder of tokenizer.json")
    parser.add_argument("--vocab-size", type=int, required=True, help="logits of the model")
    parser.add_argument("--eos-token-ids", type=int, nargs="+", required=True, help="tokens that end an answer")
    parser.add_argument("--memory-bytes", type=int, default=DEFAULT_MEMORY_BYTES, help="limit of address space")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent
    sandbox.die_with_parent()
    connection = socket.socket(fileno=arguments.fd)
    sandbox.enter(sandbox.Limits(memory_bytes=arguments.memory_bytes, cpu_s=None, open_files=_OPEN_FILES))
    with contextlib.suppress(ConnectionError):
        try:
            tokenizer = ModelTokenizer(arguments.model_dir, with_template=False)
        except TextFailed as error:
            connection.sendall(frame(MaskerReady(error=error.message)))
            return
        decoding = tokenizer.detokenizer
        tokens = decoding.token_bytes(arguments.vocab_size)
        _Masker(connection, TokenTable(tokens, arguments.eos_token_ids, decoding.stripped_prefix)).run()


if __name__ == "__main__":
    main()
