"""In which form a model writes calls of functions: found by having its chat template write one.

A template that shows the model its own calls as history shows in which form it was taught them.
"""

from typing import Any

from dataplane.text.grammar import CALL_FORMS, CallForm
from dataplane.text.template import ChatTemplate, TemplateFailed

_NAME, _KEY, _VALUE, _RESULT = "pagoda_probe", "pagoda_key", "pagoda_value", "pagoda_result"
_ARGUMENTS = {_KEY: _VALUE}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Answers.",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "A word."}},
            "required": [_KEY],
        },
    },
}
_USER = {"role": "user", "content": "Call it."}
_CALL_ID = "call00000"
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "id": _CALL_ID, "function": {"name": _NAME, "arguments": _ARGUMENTS}}],
}
_ANSWER = {"role": "tool", "content": _RESULT, "tool_call_id": _CALL_ID, "name": _NAME}


class NoCallForm(Exception):
    """Functions cannot be called through this template; the message says why."""


def form_of(template: ChatTemplate) -> CallForm:
    """Return the form of the template's calls.

    Raises:
        NoCallForm: it does not show functions to the model, or calls them in a form that we do not read.
    """
    shown = _rendered(template, [_USER])
    if _NAME not in shown:
        raise NoCallForm("this model's chat template does not show tools to the model")
    history = _rendered(template, [_USER, _CALL, _ANSWER])
    for form in CALL_FORMS.values():
        call = f'{form.trigger}{form.before}{form.opening(_NAME)}{{"{_KEY}": "{_VALUE}"}}}}{form.after}'
        if call in history and _RESULT in history:
            return form
    raise NoCallForm(
        "this model's chat template writes tool calls in a form that is not supported; supported are "
        'Hermes\' (<tool_call>{"name": ..., "arguments": ...}</tool_call>) and '
        'Llama 3\'s ({"name": ..., "parameters": ...})'
    )


def _rendered(template: ChatTemplate, messages: list[dict[str, Any]]) -> str:
    try:
        return template.render(messages, [_TOOL])
    except TemplateFailed as error:
        raise NoCallForm(f"this model's chat template does not take tools: {error}") from error
