"""Which tokens may come next under a grammar: llguidance behind a few calls, with the limits it runs under here.

The library turns most of its own faults into errors of one matcher. What it cannot: memory that runs out ends the
process, and a grammar may be made for that. So this is used in children only.
"""

import re
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_HEAD = '%llguidance {"no_forcing": true}\nstart: '
"""Without this, text that is certain would be cut into tokens by the library. The model knows its tokenizer's cut."""
_STEP_FUEL = 100_000
"""Work of one mask, of a thousand or so the ms: a step of the engine waits for it."""
_MAX_LEXER_STATES = 10_000
"""Of 1 to 2 KB each."""

_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
_SENTENCES = {
    "NoExtension": "nothing can match it",
    "panic": "it is too complex",
    "too many": "it is too complex",
    "too big": "it is too complex",
    "items; max is": "it is too complex",
    "fuel": "it is too complex",
    "lexer error": "it cannot be read",
}
"""What the library's errors are called here, by a sign of each. Others are fit to be read."""


class MatcherError(Exception):
    """A grammar that cannot be used, or text that has left it; the message says why, for its caller to read."""


class TokenTable:
    """The tokens of a model, as bytes.

    Args:
        tokens: the text of each by id; empty for what is no text, such as control tokens.
        eos_token_ids: ids that are allowed where the grammar may end, and nowhere else.
        prefix: text that the detokenizer takes off in front of every answer.
    """

    def __init__(self, tokens: Sequence[bytes], eos_token_ids: Sequence[int], prefix: str = "") -> None:
        self._prefix = f'"{prefix}" ' if prefix else ""
        self._table = LLTokenizer(_Tokens(tokens, eos_token_ids), len(tokens), list(eos_token_ids))  # type: ignore[arg-type]

    def compile(self, grammar: str) -> "Matcher":
        """Return a matcher at the grammar's beginning.

        Raises:
            MatcherError: the grammar is wrong, over a limit, or matches nothing.
        """
        limits = LLParserLimits(
            step_lexer_fuel=_STEP_FUEL,
            step_max_items=_STEP_FUEL // 5,
            max_lexer_states=_MAX_LEXER_STATES,
            verbose_errors=False,
        )
        matcher = Matcher(LLMatcher(self._table, f"{_HEAD}{self._prefix}output\n{grammar}", log_level=0, limits=limits))
        if not any(matcher.allowed()):
            raise MatcherError("nothing can match it")
        return matcher


class Matcher:
    """A place in a text that follows a grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._check()

    def copy(self) -> "Matcher":
        """Return another at the same place."""
        return Matcher(self._matcher.deep_copy())

    def accept(self, token_ids: list[int]) -> None:
        """Go on by tokens.

        Raises:
            MatcherError: the grammar does not allow them here, or has become too complex.
        """
        self._matcher.consume_tokens(token_ids)
        self._check()

    def allowed(self) -> bytes:
        """Return which tokens may come next: a bit for each, the least of a byte first.

        Raises:
            MatcherError: the grammar has become too complex.
        """
        mask = self._matcher.compute_bitmask()
        self._check()
        return mask

    def _check(self) -> None:
        if self._matcher.is_error():
            raise MatcherError(_sentence(self._matcher.get_error()))


class _Tokens:
    """What the library asks of a tokenizer. It never needs one to cut text, since it never forces tokens."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokens: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_ids[0]

    def __call__(self, text: Any) -> list[int]:  # noqa: ANN401 - the library's type
        raise MatcherError("a grammar asked for text to be cut into tokens, which none of ours needs")


def _sentence(error: str) -> str:
    """Return what the library says without the rules around it, which are ours and not the caller's."""
    lines = [line.strip() for line in error.splitlines()] or [""]
    wrong = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    wrong = _PLACE.sub("", wrong)
    return next((sentence for sign, sentence in _SENTENCES.items() if sign in wrong), wrong[:300])
