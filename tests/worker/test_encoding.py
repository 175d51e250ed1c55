from types import SimpleNamespace
from typing import Any

import pytest

from dataplane.contracts.errors import ApiError, Code
from dataplane.worker.app import Worker
from dataplane.worker.metrics import Metrics
from dataplane.worker.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from dataplane.worker.replica import Replica

pytestmark = pytest.mark.anyio
MODEL: Any = SimpleNamespace(vocab_size=320, context_tokens=512)


class Tokenizer:
    """Gives the last token that the model can read for a text, and the next for a chat."""

    async def encode_text(self, text: str, **bounds: Any) -> list[int]:
        return [5, 319]

    async def encode_chat(self, messages: bytes, **bounds: Any) -> list[int]:
        return [5, 320]


@pytest.mark.parametrize(
    ("prompt", "code"),
    [(TextPrompt("a"), None), (ChatPrompt(b"[]"), Code.TEMPLATE_FAILED), (TokenPrompt([320]), Code.INVALID_PARAMETER)],
)
async def test_a_token_beyond_the_model_never_reaches_it(prompt: Prompt, code: Code | None) -> None:
    replica = Replica("rep_1", 1.0)
    replica.tokenizer = Tokenizer()  # type: ignore[assignment]
    worker = Worker(replica, Metrics(), None, trust_header=False)
    if code is None:
        assert await worker.encode(prompt, MODEL, "acme") == [5, 319]
        return
    with pytest.raises(ApiError, match="320") as caught:
        await worker.encode(prompt, MODEL, "acme")
    assert caught.value.code is code
