"""The engine's side of the masking child: it starts it when the first grammar comes, and survives its end.

A token that was drawn goes to the child at once, so its mask is computed beside the engine's books and the next forward
pass; only who draws waits for it. Nothing here blocks but that. A child that dies is followed by another, to which each
sequence tells its tokens when its mask is next asked for: one by one, since a row asks for its own. Whoever sees two
deaths and no answer between them is guilty and fails; the others go on.
"""

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import structlog

from dataplane.contracts.errors import Code
from dataplane.contracts.generation import Submit
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
from dataplane.contracts.wire import FrameError, FrameReader, frame
from dataplane.engine.runner import RowFailure

_log = structlog.get_logger(__name__)

_MAX_GRAMMARS = 64
"""Compiled grammars that are kept, of those that no request uses."""
_MAX_DEATHS = 2
_HUNG_S = 30.0
"""A mask takes less than 100 ms of processor time at its limits: after so long the child hangs."""
_READ_BYTES = 1 << 20


class Grammar:
    """One grammar of one tenant, as far as the child has it.

    Attributes:
        compiled: it can be used.
        failure: why it cannot; empty where it can or nothing is known yet.
        users: requests and sequences that need it.
    """

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.compiled = False
        self.failure = ""
        self.users = 0
        self.deaths = 0

    @property
    def is_known(self) -> bool:
        """Whether it is compiled or has failed."""
        return self.compiled or bool(self.failure)

    def fail(self, message: str) -> None:
        """Give it up."""
        self.failure = message


class MaskedSequence:
    """One sequence under a grammar: a :class:`dataplane.engine.runner.Constraint`."""

    def __init__(self, masks: "Masks", number: int, grammar: Grammar) -> None:
        self.number = number
        self.grammar = grammar
        self.deaths = 0
        self._masks = masks
        self._token_ids: list[int] = []
        self._told = 0
        self._child_number = 0
        self._answer: bytes | RowFailure | None = None
        self.is_asked = False

    def allowed(self) -> bytes | RowFailure:
        """Return the mask of the next token; see :class:`dataplane.engine.runner.Constraint`."""
        while self._answer is None:
            if self.is_asked:
                self._masks.wait()
            else:
                self.ask()
        return self._answer

    def accept(self, token_id: int) -> None:
        """Go on by a token."""
        self._token_ids.append(token_id)
        self._answer = None
        self.ask()

    def close(self) -> None:
        """Let the child forget the sequence."""
        self._masks.end(self)

    def ask(self) -> None:
        """Send what the child has not seen yet; a new child has seen nothing."""
        child_number = self._masks.started()
        if self._child_number != child_number:
            self._child_number, self._told = child_number, 0
        self.is_asked = True
        unseen, self._told = self._token_ids[self._told :], len(self._token_ids)
        self._masks.send(Advance(sequence=self.number, grammar_id=self.grammar.number, token_ids=unseen))

    def answer(self, mask: Mask) -> None:
        """Take what the child says."""
        self.is_asked = False
        self.deaths = 0
        self._answer = mask.bits if not mask.error else RowFailure(f"the grammar: {mask.error}", Code.GRAMMAR_FAILED)

    def fail(self, message: str) -> None:
        """Give it up."""
        self.is_asked = False
        self._answer = RowFailure(message, Code.GRAMMAR_FAILED)


class Masks:
    """The masking child, and what it works for.

    Args:
        model_dir: folder of the tokenizer.
        vocab_size: logits of the model.
        eos_token_ids: tokens that end an answer.
        memory_bytes: the child's limit of address space; None is its own default.
    """

    def __init__(
        self, model_dir: Path, vocab_size: int, eos_token_ids: Sequence[int], *, memory_bytes: int | None = None
    ) -> None:
        self._arguments = [
            "--model-dir", str(model_dir.resolve()), "--vocab-size", str(vocab_size),
            "--eos-token-ids", *map(str, eos_token_ids),
        ]  # fmt: skip
        if memory_bytes is not None:
            self._arguments += ["--memory-bytes", str(memory_bytes)]
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._frames: FrameReader[FromMasker] = FrameReader(FromMasker)
        self._unsent = bytearray()
        self._grammars: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._sequences: dict[int, MaskedSequence] = {}
        self._numbers = 0
        self._child_number = 0

    @property
    def pid(self) -> int | None:
        """The child's process id; None where there is none."""
        return self._process.pid if self._process else None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the child answers; -1 where there is none."""
        return self._connection.fileno() if self._connection else -1

    # what the engine's process asks

    def grammar(self, tenant_id: str, text: str) -> Grammar:
        """Return the grammar, which is compiled from now on. Count yourself among its users while you need it."""
        key = (tenant_id, text)
        grammar = self._grammars.get(key)
        if grammar is None:
            self._forget_unused()
            self._numbers += 1
            grammar = self._grammars[key] = Grammar(self._numbers, text)
            if self._connection is None:
                self._start()  # which tells it every grammar
            else:
                self.send(Compile(grammar_id=grammar.number, grammar=text))
        self._grammars.move_to_end(key)
        return grammar

    def constrain(self, request: Submit) -> MaskedSequence:
        """Return the constraint of one sequence of ``request``; its grammar is compiled."""
        grammar = self.grammar(request.tenant_id, request.sampling.grammar)
        grammar.users += 1
        self._numbers += 1
        sequence = MaskedSequence(self, self._numbers, grammar)
        self._sequences[sequence.number] = sequence
        sequence.ask()  # the answer may come at once, to whom it is known
        return sequence

    def poll(self) -> None:
        """Take what the child has said, and send it what it had no room for."""
        if self._connection is not None:
            self._move(0.0)

    def stop(self) -> None:
        """End the child; the next grammar starts another.

        Raises:
            RuntimeError: sequences need it.
        """
        if self._sequences:
            raise RuntimeError(f"{len(self._sequences)} sequences follow a grammar")
        self._grammars.clear()
        self._close()

    # what sequences ask

    def started(self) -> int:
        """Return the number of the child, started where there is none."""
        if self._connection is None:
            self._start()
        return self._child_number

    def send(self, message: ToMasker) -> None:
        """Send a message, as soon as there is room for it."""
        self._unsent += frame(message)
        self.poll()

    def wait(self) -> None:
        """Wait until the child says something, or is another."""
        if self._connection is not None and not self._move(_HUNG_S):
            _log.warning("masker_hung", pid=self.pid)
            self._died()

    def end(self, sequence: MaskedSequence) -> None:
        """Forget a sequence."""
        if self._sequences.pop(sequence.number, None) is not None:
            sequence.grammar.users -= 1
            if self._connection is not None:
                self.send(End(sequence=sequence.number))

    # the child

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-I", "-m", "dataplane.text.masker", "--fd", str(theirs.fileno())]
            # No environment, no other descriptors, no output: what the library says may quote a tenant's schema.
            self._process = subprocess.Popen(
                command + self._arguments, env={}, pass_fds=[theirs.fileno()], start_new_session=True, cwd="/",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        ours.setblocking(False)
        self._connection = ours
        self._frames = FrameReader(FromMasker)
        self._unsent.clear()
        self._child_number += 1
        for grammar in self._grammars.values():
            if not grammar.failure:
                self._unsent += frame(Compile(grammar_id=grammar.number, grammar=grammar.text))
        self.poll()

    def _move(self, timeout_s: float) -> bool:
        """Read and write what can be; say whether something was read, waiting so long for it."""
        deadline_s = time.monotonic() + timeout_s
        while self._connection is not None:
            poll = select.poll()
            poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
            events = ready[0][1] if ready else 0
            try:
                if events & select.POLLOUT:
                    del self._unsent[: self._connection.send(self._unsent)]
                if events & ~select.POLLOUT:
                    self._read(self._connection)
                    return True
            except (ConnectionError, FrameError):
                self._died()
                return True
            if not events:
                return False
        return False

    def _read(self, connection: socket.socket) -> None:
        data = connection.recv(_READ_BYTES)
        if not data:
            self._died()
            return
        for message in self._frames.feed(data):
            self._take(message)

    def _take(self, message: FromMasker) -> None:
        match message:
            case MaskerReady(error) if error:
                for grammar in self._grammars.values():
                    grammar.fail(f"the model's tokenizer cannot be read: {error}")
            case Compiled(number, error):
                for grammar in self._grammars.values():
                    if grammar.number == number:
                        grammar.compiled, grammar.failure = not error, error
            case Mask(number):
                sequence = self._sequences.get(number)
                if sequence is not None:
                    sequence.answer(message)

    def _died(self) -> None:
        """Find who it was working for, and begin anew where somebody needs it."""
        _log.warning("masker_died", exit_code=self._close())
        compiling = [grammar for grammar in self._grammars.values() if not grammar.is_known]
        asked = [sequence for sequence in self._sequences.values() if sequence.is_asked]
        suspects: list[Grammar | MaskedSequence] = [*compiling, *asked]
        for suspect in suspects:
            suspect.deaths += 1
            if suspect.deaths >= _MAX_DEATHS:
                suspect.fail("it takes too much memory or time")
        for sequence in asked:
            sequence.is_asked = False
        if self._sequences or any(not grammar.is_known for grammar in self._grammars.values()):
            self._start()

    def _close(self) -> int | None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        code, self._process = self._process.wait(), None
        return code

    def _forget_unused(self) -> None:
        while len(self._grammars) >= _MAX_GRAMMARS:
            key = next((key for key, grammar in self._grammars.items() if not grammar.users), None)
            if key is None:
                return
            forgotten = self._grammars.pop(key)
            if self._connection is not None:
                self.send(Forget(grammar_id=forgotten.number))
