"""The functions that a caller lets the model call: ``tools``, ``tool_choice``, ``parallel_tool_calls``."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from dataplane.worker.parameters import invalid, unsupported

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class Tools(msgspec.Struct, frozen=True):
    """The functions that an answer may call.

    Attributes:
        raw: JSON of the list that the model's template shows.
        schemas: of each function's arguments, by name, as far as an answer must follow them; of any object where not.
        required: the answer must be a call.
        several: it may be more than one.
    """

    raw: bytes
    schemas: dict[str, dict[str, Any]]
    required: bool
    several: bool

    @property
    def bounds_answer(self) -> bool:
        """Whether an answer must follow the schemas, and not just may call."""
        return self.required or any(schema is not _ANY_ARGUMENTS for schema in self.schemas.values())


def of_fields(tools: list[dict[str, Any]], choice: str | dict[str, Any] | None, several: bool) -> Tools | None:
    """Return what may be called; None is nothing.

    Raises:
        ApiError: 400, naming the field at fault.
    """
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"{len(tools)} tools are not allowed, at most {MAX_TOOLS} are")
    functions: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        function = _function(f"tools[{index}]", tool)
        if function["name"] in functions:
            raise invalid(f"tools[{index}].function.name", f"{function['name']} is there twice")
        functions[function["name"]] = function
    only = _chosen(choice, functions)
    if choice == "none" or not functions:
        return None
    required = choice not in (None, "auto")
    shown = [
        {"type": "function", "function": {key: value for key, value in function.items() if key != "strict"}}
        for function in functions.values()
    ]
    return Tools(
        raw=msgspec.json.encode(shown),
        schemas={
            name: function["parameters"] if required or function.get("strict") else _ANY_ARGUMENTS
            for name, function in functions.items()
            if only in (None, name)
        },
        required=required,
        several=several and only is None,
    )


def _function(path: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unsupported(f"{path}.type", f" with the value {str(tool.get('type'))[:50]}: only function is")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{path}.function", "expected an object")
    for name in tool.keys() - {"type", "function"}:
        raise unsupported(f"{path}.{name[:100]}")
    kept = {key: value for key, value in function.items() if value is not None}
    for name in kept.keys() - {"name", "description", "parameters", "strict"}:
        raise unsupported(f"{path}.function.{name[:100]}")
    return kept | {"name": _name(path, kept.get("name")), "parameters": _parameters(path, kept)}


def _name(path: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(f"{path}.function.name", "expected 1 to 64 letters, digits, _ and -")
    return name


def _parameters(path: str, function: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(function.get("description", ""), str):
        raise invalid(f"{path}.function.description", "expected a string")
    if not isinstance(function.get("strict", False), bool):
        raise invalid(f"{path}.function.strict", "expected `bool`")
    parameters = function.get("parameters", _NO_ARGUMENTS)
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise invalid(f"{path}.function.parameters", "expected the JSON schema of an object")
    return {"type": "object", **parameters}


def _chosen(choice: str | dict[str, Any] | None, functions: Mapping[str, Any]) -> str | None:
    """Return the name of the one function that must be called; None where it may be any or none."""
    if choice in (None, "none"):
        return None
    if not functions:
        raise invalid("tool_choice", "it is allowed only with tools")
    if isinstance(choice, str):
        if choice not in ("auto", "required"):
            raise invalid("tool_choice", "it must be none, auto, required or a function")
        return None
    if choice.get("type") != "function":
        raise unsupported("tool_choice.type", f" with the value {str(choice.get('type'))[:50]}: only function is")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in functions:
        raise invalid("tool_choice.function.name", "it must be the name of one of the tools")
    return name
