"""Has a folder judged in children that may die: the inspection in one, then a trial of tokenizer and template each.

This process reads nothing of the folder. What ends a child at a limit, or makes a library abort it, refuses the folder.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from dataplane import sandbox
from dataplane.contracts import verdict as contract
from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.verdict import CHECKS, Check, CheckState, Progress, Refusal, Verdict
from dataplane.inspect import children, names
from dataplane.inspect.children import Ended
from dataplane.inspect.inspection import inspect
from dataplane.inspect.refusals import printable

_TRIAL_CPU_S = 2
_TRIAL_BYTES_PER_S = 4_000_000
_DEADLINE_PER_CPU_S = 10
_MEND_LIMIT = "Real models stay far below it: give the files as save_pretrained wrote them."
_MEND_TOKENIZER = "Save the tokenizer again with the tokenizers library, and encode a few texts with it."
_MEND_TEMPLATE = "Give a chat template that transformers renders."

Relay = Callable[[bytes], None]
"""Gets each :class:`Progress` as a line of JSON, without its end."""


class NoVerdict(Exception):
    """The child that judges broke down, and not at a limit: a fault of ours. The message says how it ended."""


def judge(path: str, limits: sandbox.Limits, relay: Relay) -> Verdict:
    """Return the verdict on the folder at ``path``.

    Args:
        path: a folder.
        limits: of each child.
        relay: told of each check.

    Raises:
        NoVerdict: the inspection or a trial broke down.
    """
    judgement = _Judgement(Path(path), limits, relay)
    try:
        verdict = judgement.inspected()
        return judgement.tried(verdict) if verdict.config is not None and not verdict.refusals else verdict
    except msgspec.DecodeError as error:  # from a child that is no longer itself
        raise NoVerdict(f"the inspection said what none says: {error}") from error


class _Judgement:
    def __init__(self, path: Path, limits: sandbox.Limits, relay: Relay) -> None:
        self._path = path
        self._limits = limits
        self._relay = relay
        self._ended: dict[str, Check] = {}
        self._current = CHECKS[0]

    def inspected(self) -> Verdict:
        """The verdict of the inspection."""

        def work(tell: children.Tell) -> bytes:
            return msgspec.json.encode(inspect(str(self._path), lambda news: tell(msgspec.json.encode(news))))

        ended = self._run(work, self._limits)
        if ended.result is not None:
            return contract.decode(ended.result)
        if not ended.theirs:
            raise NoVerdict(f"the inspection {ended.cause}")
        refusal = Refusal(file="", reason=f"judging it {ended.cause}", mend=_MEND_LIMIT)
        self._end(Check(self._current, CheckState.FAILED, refusal.reason, refusal.mend))
        return Verdict(refusals=(refusal,), checks=self._checks())

    def tried(self, verdict: Verdict) -> Verdict:
        """The verdict after the trials."""
        config = verdict.config
        assert config is not None  # noqa: S101 - the caller has looked
        sizes = {file.name: file.size_bytes for file in verdict.files}
        cpu_s = _TRIAL_CPU_S + sizes[names.TOKENIZER] // _TRIAL_BYTES_PER_S
        limits = self._limits._replace(cpu_s=min(cpu_s, self._limits.cpu_s or cpu_s))
        self._ended = {check.name: check for check in verdict.checks}
        refusals = [self._try("tokenizer_trial", names.TOKENIZER, _MEND_TOKENIZER, self._tokenizer(config), limits)]
        if verdict.has_chat_template:
            file = names.CHAT_TEMPLATE if names.CHAT_TEMPLATE in sizes else names.TOKENIZER_CONFIG
            refusals.append(self._try("template_trial", file, _MEND_TEMPLATE, self._template, limits))
        else:  # nothing that could fail, as the check of its syntax has nothing either
            self._tell(Progress("template_trial"))
            self._end(Check("template_trial", CheckState.PASSED))
        found = tuple(refusal for refusal in refusals if refusal is not None)
        files = () if found else verdict.files
        return msgspec.structs.replace(verdict, refusals=found, files=files, checks=self._checks())

    def _tokenizer(self, config: ModelConfig) -> Callable[[], None]:
        def attempt() -> None:
            from dataplane.text import trial  # noqa: PLC0415 - the library is loaded where it may abort

            trial.try_tokenizer(self._path, config.vocab_size)

        return attempt

    def _template(self) -> None:
        from dataplane.text import trial  # noqa: PLC0415 - as above

        trial.try_template(self._path)

    def _try(
        self, name: str, file: str, mend: str, attempt: Callable[[], None], limits: sandbox.Limits
    ) -> Refusal | None:
        began = time.monotonic()
        self._tell(Progress(name))
        ended = self._run(lambda _tell: _outcome(attempt), limits, quiet=True)
        if ended.result is None and not ended.theirs:
            raise NoVerdict(f"the {name} {ended.cause}")
        reason = f"trying it {ended.cause}" if ended.result is None else msgspec.json.decode(ended.result, type=str)
        state = CheckState.FAILED if reason else CheckState.PASSED
        shown = f"{file}: {reason}" if reason else ""
        ms = round((time.monotonic() - began) * 1000)
        self._end(Check(name, state, shown, mend if reason else "", ms))
        return Refusal(file=file, reason=reason, mend=mend) if reason else None

    def _run(self, work: Callable[[children.Tell], bytes], limits: sandbox.Limits, *, quiet: bool = False) -> Ended:
        deadline_s = _DEADLINE_PER_CPU_S * (limits.cpu_s or _TRIAL_CPU_S)
        return children.run(work, limits, deadline_s=deadline_s, on_news=self._hear, quiet=quiet)

    def _hear(self, line: bytes) -> None:
        progress = contract.decode_progress(line)
        self._current = progress.check
        if progress.ended is not None:
            self._ended[progress.check] = progress.ended
        self._relay(line)

    def _tell(self, progress: Progress) -> None:
        self._relay(msgspec.json.encode(progress))

    def _end(self, check: Check) -> None:
        self._ended[check.name] = check
        self._tell(Progress(check.name, ended=check))

    def _checks(self) -> tuple[Check, ...]:
        return tuple(self._ended.get(name, Check(name, CheckState.NOT_RUN)) for name in CHECKS)


def _outcome(attempt: Callable[[], None]) -> bytes:
    """Run a trial and return why it fails, "" when it does not, as JSON."""
    from dataplane.text.tokenizer import TextFailed  # noqa: PLC0415 - the library is loaded where it may abort

    reason = ""
    try:
        attempt()
    except TextFailed as error:
        reason = error.message
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of the library is no Exception, and may quote its input
        reason = f"the library fails on it ({type(error).__name__})"
    return msgspec.json.encode(printable(reason))
