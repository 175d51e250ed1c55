"""The forms of a prompt: text, token ids, or messages of a chat."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dataplane.worker.parameters import invalid, unsupported

_ROLES = ("system", "developer", "user", "assistant")


class TextPrompt(msgspec.Struct, frozen=True):
    """A prompt to encode as it stands."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True):
    """A prompt that is token ids already."""

    token_ids: list[int]


class ChatPrompt(msgspec.Struct, frozen=True):
    """Messages to render: JSON of a list of {role, content}, both strings."""

    messages: bytes


Prompt = TextPrompt | TokenPrompt | ChatPrompt


def of_completion(prompt: str | list[Any]) -> Prompt:
    """Return the prompt of a plain completion: a text, or token ids.

    Raises:
        ApiError: 400: it is empty, several, or neither.
    """
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        if not prompt:
            raise invalid("prompt", "it must not be empty")
        return TextPrompt(prompt)
    if not prompt:
        raise invalid("prompt", "it must not be empty")
    if isinstance(prompt[0], str | list):
        raise unsupported("prompt", f" with {len(prompt)} prompts in one request: send one request for each")
    if not all(type(token_id) is int for token_id in prompt):
        raise invalid("prompt", "expected a string, or a list of token ids")
    return TokenPrompt(prompt)


def of_chat(messages: list[dict[str, Any]]) -> ChatPrompt:
    """Return the prompt of a chat.

    Raises:
        ApiError: 400, naming the place in a message that cannot be rendered.
    """
    if not messages:
        raise invalid("messages", "it must not be empty")
    return ChatPrompt(msgspec.json.encode([_message(index, message) for index, message in enumerate(messages)]))


def _message(index: int, message: Mapping[str, Any]) -> dict[str, str]:
    path = f"messages[{index}]."
    for name, value in message.items():
        # What an answer of ours or of OpenAI carries when it is sent back as history, and says nothing.
        if name not in ("role", "content") and value not in (None, []):
            raise unsupported(f"{path}{name[:100]}")
    role = message.get("role")
    if role in ("tool", "function"):
        raise unsupported(f"{path}role", f" with the value {role}")
    if role not in _ROLES:
        raise invalid(f"{path}role", f"it must be one of {', '.join(_ROLES)}")
    return {
        "role": "system" if role == "developer" else role,
        "content": _content(f"{path}content", message.get("content")),
    }


def _content(path: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(path, "expected a string, or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise invalid(f"{path}[{index}]", "expected an object with a type")
        if part["type"] != "text":
            raise unsupported(f"{path}[{index}].type", f" with the value {part['type'][:50]}: only text is")
        for name in part.keys() - {"type", "text"}:
            raise unsupported(f"{path}[{index}].{name[:100]}")
        if not isinstance(part.get("text"), str):
            raise invalid(f"{path}[{index}].text", "expected a string")
        texts.append(part["text"])
    return "\n".join(texts)
