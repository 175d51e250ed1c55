"""The sandboxed process that holds a model's tokenizer and chat template: ``python -m dataplane.text.child --fd N``.

It reads frames of ``ToTokenizer`` from the socket N and answers each with one of ``FromTokenizer``: in turn, in the
main thread, whose signals limit a template's time. A call that fails is answered by an error. What the library aborts
on ends the process, and the client starts another.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

# Read by the tokenizers library when it is first used: no threads of its own.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from dataplane import sandbox
from dataplane.contracts.errors import Code
from dataplane.contracts.generation import (
    CallFormFound,
    Encoded,
    EncodeText,
    FindCallForm,
    FromTokenizer,
    OpenTokenizer,
    TokenizerError,
    TokenizerOpened,
    ToTokenizer,
)
from dataplane.contracts.wire import FrameReader, frame
from dataplane.text.tokenizer import ModelTokenizer, TextFailed

DEFAULT_MEMORY_BYTES = 1024 * 1024 * 1024
_OPEN_FILES = 32
_OPEN_CALL = -1


class _Child:
    """One conversation with the client, over a blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._tokenizer: ModelTokenizer | None = None

    def run(self) -> None:
        """Answer until the client closes the socket."""
        reader: FrameReader[ToTokenizer] = FrameReader(ToTokenizer)
        while data := self._connection.recv(1 << 16):
            for message in reader.feed(data):
                call = _OPEN_CALL if isinstance(message, OpenTokenizer) else message.call
                self._connection.sendall(frame(_guarded(call, partial(self._work, message))))

    def _work(self, message: ToTokenizer) -> FromTokenizer:
        if isinstance(message, OpenTokenizer):
            self._tokenizer = ModelTokenizer(Path(message.model_dir))
            return TokenizerOpened(spellings=self._tokenizer.spellings)
        if isinstance(message, FindCallForm):
            return CallFormFound(call=message.call, form=self._opened.call_form().name)
        if isinstance(message, EncodeText):
            token_ids = self._opened.encode_text(message.text, message.max_tokens)
        else:
            chat = self._opened.render_chat(message.messages, message.max_tokens, raw_tools=message.tools)
            token_ids = self._opened.encode_chat(chat)
        return Encoded(call=message.call, token_ids=token_ids)

    @property
    def _opened(self) -> ModelTokenizer:
        if self._tokenizer is None:
            raise TextFailed(Code.INTERNAL, "The tokenizer is not open.")
        return self._tokenizer


def _guarded(call: int, work: Callable[[], FromTokenizer]) -> FromTokenizer:
    """Return the answer of ``work``, or the error that its call gets."""
    try:
        return work()
    except TextFailed as error:
        return TokenizerError(call=call, code=error.code.code, message=error.message)
    except MemoryError:
        return TokenizerError(call=call, code=Code.TOKENIZER_FAILED.code, message="The tokenizer ran out of memory.")
    except BaseException as error:  # noqa: BLE001 - a panic of the library is no Exception, and may quote the prompt
        message = f"The model's tokenizer failed ({type(error).__name__})."
        return TokenizerError(call=call, code=Code.TOKENIZER_FAILED.code, message=message)


def main() -> int:
    """Run the command line; it ends when the client closes the socket."""
    parser = argparse.ArgumentParser(prog="python -m dataplane.text.child", description="The tokenizer process.")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the Unix socket to the client")
    parser.add_argument("--memory-bytes", type=int, default=DEFAULT_MEMORY_BYTES, help="limit of address space")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent
    sandbox.die_with_parent()
    connection = socket.socket(fileno=arguments.fd)
    sandbox.enter(sandbox.Limits(memory_bytes=arguments.memory_bytes, cpu_s=None, open_files=_OPEN_FILES))
    try:
        _Child(connection).run()
    except ConnectionError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
