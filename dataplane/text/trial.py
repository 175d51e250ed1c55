"""Tries a model's tokenizer and chat template on a few texts, as serving will use them.

Called in a child of its own, inside the sandbox: either may end its process, and what a regular expression or a loop of
theirs costs is seen by running it.
"""

from pathlib import Path

from dataplane.contracts.errors import Code
from dataplane.text.template import TRIAL_CPU_S, TemplateFailed
from dataplane.text.tokenizer import ModelTokenizer, TextFailed, load_template

_MAX_PROMPT_CHARS = 256 * 1024

_TEXTS = (
    "Hello, world! How are you today?",
    "naïve café, 北京, Привет, 🙂👩‍👩‍👧, \u202eright to left",
    "  def f(x):\n\treturn x ** 2  # 3.14159\r\n\n\n",
    "a" * 200 + "!",  # what a pattern that backtracks needs
    " " * 200 + ".",
    "1234567890" * 20,
    "<s></s><|im_start|><|endoftext|><unk>[INST]<0x0A>",
    "\x00\x1b\x7f\ufffd\U0010ffff",
)

_USER = {"role": "user", "content": "Hello!"}
_CONVERSATIONS = (
    [_USER],
    [_USER, {"role": "assistant", "content": "Hi, how can I help?"}, {"role": "user", "content": "Tell me a joke."}],
)


def try_tokenizer(model_dir: Path, vocab_size: int) -> None:
    """Encode texts and decode every token.

    Args:
        model_dir: the model folder.
        vocab_size: how many embeddings the model has.

    Raises:
        TextFailed: a text cannot be encoded, or not to tokens of the model.
    """
    tokenizer = ModelTokenizer(model_dir, with_template=False)
    for text in _TEXTS:
        token_ids = tokenizer.encode_text(text)
        if max(token_ids) >= vocab_size:
            raise TextFailed(Code.TOKENIZER_FAILED, f"it gives the token {max(token_ids)}, the model has {vocab_size}")
        tokenizer.detokenizer.decode(token_ids)
    tokenizer.detokenizer.decode(range(vocab_size))


def try_template(model_dir: Path) -> None:
    """Render short conversations of a user and the assistant.

    Raises:
        TextFailed: one of them cannot be rendered, or not to a prompt.
    """
    template = load_template(model_dir, TRIAL_CPU_S)
    if template is None:
        return
    for messages in _CONVERSATIONS:
        try:
            prompt = template.render(messages)
        except TemplateFailed as error:
            raise TextFailed(Code.TEMPLATE_FAILED, str(error)) from error
        if not 0 < len(prompt) <= _MAX_PROMPT_CHARS:
            raise TextFailed(
                Code.TEMPLATE_FAILED, f"it renders {len(messages)} short messages to {len(prompt)} characters"
            )
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise TextFailed(Code.TEMPLATE_FAILED, "its prompt has half a character, so it cannot be encoded")
