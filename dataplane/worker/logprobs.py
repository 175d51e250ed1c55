"""Log probabilities as OpenAI writes them: an object for each token of a chat, four lists for a completion."""

from collections.abc import Sequence
from typing import Any

from dataplane.worker.choice import ScoredToken


def of_chat(scores: Sequence[ScoredToken]) -> dict[str, Any]:
    """Return the ``logprobs`` of a chat's choice."""
    content = [
        _described(score.token, score.logprob) | {"top_logprobs": [_described(*other) for other in score.top]}
        for score in scores
    ]
    return {"content": content, "refusal": None}


def of_completion(scores: Sequence[ScoredToken]) -> dict[str, Any]:
    """Return the ``logprobs`` of a completion's choice; the token itself is always among the likeliest it lists."""
    return {
        "tokens": [token_text(score.token) for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_likeliest(score) for score in scores],
        "text_offset": [score.offset for score in scores],
    }


def token_text(token: bytes) -> str:
    """Return a token as text; one that is not whole characters as OpenAI writes it, byte by byte."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _described(token: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": token_text(token), "logprob": logprob, "bytes": list(token)}


def _likeliest(score: ScoredToken) -> dict[str, float] | None:
    if score.logprob is None:
        return None
    return {token_text(token): logprob for token, logprob in score.top} | {token_text(score.token): score.logprob}
