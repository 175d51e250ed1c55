"""What a caller wants of an answer's form: ``response_format`` as OpenAI has it, ``structured_outputs`` as vLLM."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dataplane.contracts import strict_json
from dataplane.contracts.errors import ApiError, Code
from dataplane.text import grammar
from dataplane.text.grammar import CallForm, Functions, GrammarRefused
from dataplane.worker.parameters import invalid, unsupported
from dataplane.worker.tools import Tools

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_CHOICES = 4096
_KINDS = ("json", "json_object", "regex", "choice")


class Structure(msgspec.Struct, frozen=True):
    """The form that an answer must have: JSON of a schema, or else a grammar. ``field`` is where it was asked for."""

    field: str
    schema: dict[str, Any] | None = None
    grammar: str = ""


def of_fields(response_format: dict[str, Any] | None, outputs: dict[str, Any] | None) -> Structure | None:
    """Return the form that was asked for; None is any.

    Raises:
        ApiError: 400, naming the field at fault.
    """
    asked = None if response_format is None else _of_response_format(response_format)
    if outputs is None:
        return asked
    if asked is not None:
        raise invalid("structured_outputs", "it contradicts response_format; give one of them")
    return _of_outputs({name: value for name, value in outputs.items() if value is not None})


def grammar_of(structure: Structure | None, tools: Tools | None, form: CallForm | None) -> tuple[str, str]:
    """Return the grammar of a whole answer, empty where anything goes, and the field that is to blame for it.

    Raises:
        ApiError: 400: it is too long, or asks for what excludes itself.
    """
    if tools is None or form is None:
        if structure is None:
            return "", ""
        return _made(structure.field, lambda: structure.grammar or grammar.of_schema(structure.schema or {}))
    functions = Functions(form, tools.schemas, tools.several and bool(form.trigger))
    if tools.required:
        return _made("tools", lambda: grammar.of_calls(functions))
    if structure is None:
        return _made("tools", lambda: grammar.of_text_or_calls(functions)) if tools.bounds_answer else ("", "")
    if structure.schema is None:
        raise invalid(structure.field, "with tools it may only ask for JSON; set tool_choice to none")
    schema = structure.schema
    return _made(structure.field, lambda: grammar.of_json_or_calls(schema, functions))


def refusal(field: str, reason: str) -> ApiError:
    """Return the answer to a form that cannot be had."""
    return ApiError(
        Code.INVALID_PARAMETER, f"{field}: the form of answer that it asks for cannot be used: {reason}", param=field
    )


def _made(field: str, make: Callable[[], str]) -> tuple[str, str]:
    try:
        return make(), field
    except GrammarRefused as error:
        raise refusal(field, str(error)) from error


def _of_response_format(asked: Mapping[str, Any]) -> Structure | None:
    kind = asked.get("type")
    known = {"type", "json_schema"} if kind == "json_schema" else {"type"}
    for name in asked.keys() - known:
        raise unsupported(f"response_format.{name[:100]}")
    if kind == "text":
        return None
    if kind == "json_object":
        return Structure("response_format", schema={"type": "object"})
    if kind != "json_schema":
        raise invalid("response_format.type", "it must be text, json_object or json_schema")
    path = "response_format.json_schema"
    given = asked.get("json_schema")
    if not isinstance(given, dict):
        raise invalid(path, "expected an object")
    for name in given.keys() - {"name", "description", "schema", "strict"}:
        raise unsupported(f"{path}.{name[:100]}")
    if not isinstance(given.get("name"), str) or not _NAME.fullmatch(given["name"]):
        raise invalid(f"{path}.name", "expected 1 to 64 letters, digits, _ and -")
    if not isinstance(given.get("strict"), bool | None):
        raise invalid(f"{path}.strict", "expected `bool`")
    if not isinstance(given.get("schema"), dict):
        raise invalid(f"{path}.schema", "expected a JSON schema, an object")
    return Structure(f"{path}.schema", schema=given["schema"])


def _of_outputs(asked: Mapping[str, Any]) -> Structure:
    for name in asked.keys() - set(_KINDS):
        raise unsupported(f"structured_outputs.{name[:100]}")
    if len(asked) != 1:
        raise invalid("structured_outputs", f"expected one of {', '.join(_KINDS)}")
    ((kind, value),) = asked.items()
    path = f"structured_outputs.{kind}"
    match kind:
        case "json_object":
            if value is not True:
                raise invalid(path, "it must be true")
            return Structure(path, schema={"type": "object"})
        case "json":
            return Structure(path, schema=_schema(path, value))
        case "regex":
            if not isinstance(value, str) or not value:
                raise invalid(path, "expected a regular expression")
            return Structure(path, grammar=_made(path, lambda: grammar.of_regex(value))[0])
        case _:
            if not isinstance(value, list) or not 0 < len(value) <= _MAX_CHOICES:
                raise invalid(path, f"expected a list of 1 to {_MAX_CHOICES} texts")
            if not all(isinstance(text, str) and text for text in value):
                raise invalid(path, "each choice must be a text that is not empty")
            return Structure(path, grammar=_made(path, lambda: grammar.of_choice(value))[0])


def _schema(path: str, value: object) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = strict_json.loads(value.encode(), grammar.MAX_GRAMMAR_BYTES)
        except strict_json.StrictJsonError as error:
            raise invalid(path, f"it cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise invalid(path, "expected a JSON schema, an object")
    return value
