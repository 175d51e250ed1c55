"""What an answer may be, as a grammar: rules in the variation of Lark's syntax that llguidance reads, made here alone.

Callers give schemas, expressions and choices, never rules: so no caller can name a control token or an option of the
library. A grammar is the text of its rules, of which ``output`` is the whole answer.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MAX_GRAMMAR_BYTES = 128 * 1024
"""Of the rules. OpenAI allows schemas of 120,000 characters."""
Schema = Mapping[str, Any]

_OPTIONS = "x-guidance"
"""A key of a schema under which the library takes options, from whoever wrote the schema."""
_SPACE = "[ \\n\\r\\t]{1,64}"
"""What may stand between the parts of a JSON text: enough for lines with indents, and never without an end."""

_IN_SLASHES = {"/": "\\/", "\n": "\\n", "\x7f": "\\x7f"}
_CLASSES = {"d": "[0-9]", "w": "[0-9A-Za-z_]"}
"""As JSON Schema reads them. What they match, readers that know all of Unicode's digits and letters match too; of what
is no digit or letter they match less, as the library does."""


class GrammarRefused(ValueError):
    """No grammar can be made of what was given; the message says why."""


class CallForm(NamedTuple):
    """How a model writes a call: ``trigger before {"name": "f", "arguments_key": {...}} after``.

    Without a trigger a call is the whole answer.
    """

    name: str
    trigger: str
    before: str
    after: str
    between: str
    arguments_key: str

    def opening(self, function: str) -> str:
        """Return the JSON of a call of ``function``, up to its arguments."""
        return f'{{"name": {_literal(function)}, "{self.arguments_key}": '


HERMES = CallForm("hermes", "<tool_call>", "\n", "\n</tool_call>", "\n", "arguments")
"""Of Hermes, Qwen 2.5 and Qwen 3."""
LLAMA = CallForm("llama3_json", "", "", "", "", "parameters")
"""Of Llama 3.1 to 3.3: one call."""
CALL_FORMS = {form.name: form for form in (HERMES, LLAMA)}


class Functions(NamedTuple):
    """The functions that may be called, with the schemas of their arguments, and how often."""

    form: CallForm
    schemas: Mapping[str, Schema]
    several: bool


def of_schema(schema: Schema) -> str:
    """Return the grammar of the JSON texts that ``schema`` describes.

    Raises:
        GrammarRefused: too long, as all of these functions.
    """
    return _checked(f"output: {_json(schema)}\n")


def of_choice(choices: Sequence[str]) -> str:
    """Return the grammar of just these texts."""
    # A terminal is one automaton; as a rule each choice would be a state to keep beside the others.
    return _checked(f"output: CHOICE\nCHOICE: {' | '.join(map(_literal, choices))}\n")


def of_regex(pattern: str) -> str:
    """Return the grammar of the texts that a regular expression (Rust's syntax) matches from end to end."""
    return _checked(f"output: /{_within_slashes(pattern)}/\n")


def of_calls(functions: Functions) -> str:
    """Return the grammar of one call, or of several."""
    return _checked("output: calls\n" + _call_rules(functions))


def of_json_or_calls(schema: Schema, functions: Functions) -> str:
    """Return the grammar of a JSON text of ``schema``, or calls."""
    return _checked(f"output: {_json(schema)} | calls\n" + _call_rules(functions))


def of_text_or_calls(functions: Functions) -> str:
    """Return the grammar of any text, after which calls may follow; a call that is begun is a valid one."""
    form = functions.form
    if not form.trigger:  # the call is the whole answer, known by how it begins
        return _checked("output: calls | TEXT\nTEXT: /([^{](.|\\n)*)?/\n" + _call_rules(functions))
    first = f"opened {_literal(form.before)} body {_literal(form.after)}{_more(functions)}"
    opened = f"opened[lazy]: /(.|\\n)*/ {_literal(form.trigger)}"
    return _checked(f"output: TEXT | {first}\nTEXT: /(.|\\n)*/\n{opened}\n" + _call_rules(functions))


def _call_rules(functions: Functions) -> str:
    form = functions.form
    bodies = "".join(
        f"body_{number}: {_literal(form.opening(name))} {_json(schema)} {_literal('}')}\n"
        for number, (name, schema) in enumerate(functions.schemas.items())
    )
    names = " | ".join(f"body_{number}" for number in range(len(functions.schemas)))
    around = [_literal(text) if text else "" for text in (form.trigger + form.before, form.after)]
    return f"calls: call{_more(functions)}\ncall: {around[0]} body {around[1]}\nbody: {names}\n{bodies}"


def _more(functions: Functions) -> str:
    return f" ({_literal(functions.form.between)} call)*" if functions.several else ""


def _json(schema: Schema) -> str:
    options = {_OPTIONS: {"whitespace_pattern": _SPACE}}
    return f"%json {_literal({**schema, **options})}"


def _literal(value: Any) -> str:  # noqa: ANN401 - the value of a JSON text has any type
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which the library does not read as it is


def _within_slashes(pattern: str) -> str:
    """Escape what would end an expression that stands between slashes on one line; read classes as ASCII's."""
    written: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            written.append(_CLASSES.get(escaped, _IN_SLASHES.get(escaped, f"\\{escaped}")))
        else:
            written.append(_IN_SLASHES.get(character, character))
    return "".join(written)


def _checked(rules: str) -> str:
    if len(rules.encode()) > MAX_GRAMMAR_BYTES:
        raise GrammarRefused(f"it has {len(rules.encode())} bytes as a grammar, the limit is {MAX_GRAMMAR_BYTES}")
    return rules
