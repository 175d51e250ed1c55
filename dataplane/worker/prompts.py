"""The forms of a prompt: text, token ids, or messages of a chat."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dataplane.contracts import strict_json
from dataplane.worker.parameters import invalid, unsupported

_MAX_ARGUMENTS_BYTES = 1024 * 1024
_ROLES = ("system", "developer", "user", "assistant", "tool")
_OF_ROLE = {"assistant": {"tool_calls"}, "tool": {"tool_call_id", "name"}}
"""What a message has beside its role and content."""


class TextPrompt(msgspec.Struct, frozen=True):
    """A prompt to encode as it stands."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True):
    """A prompt that is token ids already."""

    token_ids: list[int]


class ChatPrompt(msgspec.Struct, frozen=True):
    """Messages to render, and the tools to show: JSON as the tokenizer's child takes it.

    ``has_calls``: the messages have calls of tools, or their results.
    """

    messages: bytes
    tools: bytes = b"[]"
    has_calls: bool = False


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


def of_chat(messages: list[dict[str, Any]], tools: bytes = b"[]") -> ChatPrompt:
    """Return the prompt of a chat whose answer may call ``tools``, JSON of a list of them.

    Raises:
        ApiError: 400, naming the place in a message that cannot be rendered.
    """
    if not messages:
        raise invalid("messages", "it must not be empty")
    rendered = [_message(f"messages[{index}].", message) for index, message in enumerate(messages)]
    has_calls = any(message["role"] == "tool" or "tool_calls" in message for message in rendered)
    return ChatPrompt(msgspec.json.encode(rendered), tools, has_calls)


def _message(path: str, message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if role == "function":
        raise unsupported(f"{path}role", f" with the value {role}")
    if role not in _ROLES:
        raise invalid(f"{path}role", f"it must be one of {', '.join(_ROLES)}")
    # What an answer of ours or of OpenAI carries when it is sent back as history, and says nothing.
    said = {name: value for name, value in message.items() if value not in (None, [])}
    for name in said.keys() - {"role", "content"} - _OF_ROLE.get(role, set()):
        raise unsupported(f"{path}{name[:100]}")
    content = said.get("content", "" if "tool_calls" in said else None)
    fields = {
        "role": "system" if role == "developer" else role,
        "content": content if content == "" else _content(f"{path}content", content),
    }
    if "tool_calls" in said:
        fields["tool_calls"] = _calls(f"{path}tool_calls", said["tool_calls"])
    for name in said.keys() & {"tool_call_id", "name"}:
        if not isinstance(said[name], str):
            raise invalid(f"{path}{name}", "expected a string")
        fields[name] = said[name]
    return fields


def _calls(path: str, calls: object) -> list[dict[str, Any]]:
    """Return calls as templates take them: their arguments are an object, and no text."""
    if not isinstance(calls, list):
        raise invalid(path, "expected a list of calls")
    read = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise invalid(f"{path}[{index}]", "expected a call of a function")
        name, text, call_id = function.get("name"), function.get("arguments"), call.get("id", "")
        if not (isinstance(name, str) and isinstance(text, str) and isinstance(call_id, str)):
            raise invalid(f"{path}[{index}]", "expected an id, a function's name and its arguments, all strings")
        try:
            arguments = strict_json.loads_object(text.encode(), _MAX_ARGUMENTS_BYTES) if text else {}
        except strict_json.StrictJsonError as error:
            raise invalid(f"{path}[{index}].function.arguments", f"expected the JSON of an object: {error}") from error
        read.append({"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}})
    return read


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
