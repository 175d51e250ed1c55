"""The sandboxed process that holds a model's tokenizer and chat template: ``python -m dataplane.text.child --fd N``.

It reads frames of ``ToTokenizer`` from the socket N and answers with ``FromTokenizer``. Templates and decoding run in
the main thread; encoding runs in a second one, with the interpreter's lock released, so that a long prompt never stops
the streams of others. A call that fails is answered by an error. What the library aborts on ends the process, and the
client starts another.
"""

import argparse
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

# Read by the tokenizers library when it is first used: no threads of its own.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from dataplane import sandbox
from dataplane.contracts.errors import Code
from dataplane.contracts.generation import (
    CloseStream,
    Decoded,
    DecodeTokens,
    EncodeChat,
    Encoded,
    EncodeText,
    FromTokenizer,
    OpenTokenizer,
    TokenizerError,
    TokenizerOpened,
    ToTokenizer,
)
from dataplane.contracts.wire import FrameReader, frame
from dataplane.text.detokenize import TextStream
from dataplane.text.tokenizer import ModelTokenizer, TextFailed

DEFAULT_MEMORY_BYTES = 1024 * 1024 * 1024
_OPEN_FILES = 32
_OPEN_CALL = -1

_Encoding = tuple[int, Callable[[], list[int]]]


class _Child:
    """One conversation with the client, over a blocking socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._encodings: queue.SimpleQueue[_Encoding] = queue.SimpleQueue()
        self._streams: dict[str, TextStream] = {}
        self._tokenizer: ModelTokenizer | None = None

    def run(self) -> None:
        """Answer until the client closes the socket."""
        threading.Thread(target=self._encode_in_turn, daemon=True).start()
        reader: FrameReader[ToTokenizer] = FrameReader(ToTokenizer)
        while data := self._connection.recv(1 << 16):
            for message in reader.feed(data):
                self._take(message)

    def _take(self, message: ToTokenizer) -> None:
        if isinstance(message, CloseStream):
            self._streams.pop(message.stream, None)
            return
        call = _OPEN_CALL if isinstance(message, OpenTokenizer) else message.call
        answer = _guarded(call, lambda: self._work(message))
        if answer is not None:
            self._send(answer)

    def _work(self, message: OpenTokenizer | EncodeText | EncodeChat | DecodeTokens) -> FromTokenizer | None:
        """Do the part of the main thread; None when the answer comes from the other one."""
        if isinstance(message, OpenTokenizer):
            self._streams.clear()
            self._tokenizer = ModelTokenizer(Path(message.model_dir))
            return TokenizerOpened()
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise TextFailed(Code.INTERNAL, "The tokenizer is not open.")
        if isinstance(message, DecodeTokens):
            return Decoded(call=message.call, text=self._decode(tokenizer, message))
        if isinstance(message, EncodeText):
            text = message.text
            self._encodings.put((message.call, lambda: tokenizer.encode_text(text)))
        else:
            chat = tokenizer.render_chat(message.messages)
            self._encodings.put((message.call, lambda: tokenizer.encode_chat(chat)))
        return None

    def _decode(self, tokenizer: ModelTokenizer, message: DecodeTokens) -> str:
        stream = self._streams.get(message.stream) or tokenizer.stream()
        text = stream.push(message.token_ids, last=message.last)
        if message.last:
            self._streams.pop(message.stream, None)
        else:
            self._streams[message.stream] = stream
        return text

    def _encode_in_turn(self) -> None:
        while True:
            call, encode = self._encodings.get()
            answer = _guarded(call, partial(_encoded, call, encode))
            if answer is not None:
                self._send(answer)

    def _send(self, message: FromTokenizer) -> None:
        with self._sending:
            self._connection.sendall(frame(message))


def _encoded(call: int, encode: Callable[[], list[int]]) -> Encoded:
    return Encoded(call=call, token_ids=encode())


def _guarded(call: int, work: Callable[[], FromTokenizer | None]) -> FromTokenizer | None:
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
