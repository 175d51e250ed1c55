"""What may be asked of an answer's form, and of tools: closed sets, each refusal by the path of its field."""

import json
from typing import Any

import pytest

from dataplane.contracts.errors import ApiError, Code
from dataplane.text import grammar
from dataplane.text.grammar import HERMES, LLAMA, CallForm
from dataplane.worker import requests, structure
from dataplane.worker.prompts import ChatPrompt
from dataplane.worker.requests import GenerationRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
STRICT = {"name": "f", "strict": True, "parameters": SCHEMA}
F, G = (
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "g"}},
)


def parsed(**fields: Any) -> GenerationRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields
    return requests.parse_chat(json.dumps(body).encode())


def rules(form: CallForm = HERMES, **fields: Any) -> str:
    request = parsed(**fields)
    return structure.grammar_of(request.structure, request.tools, form if request.tools else None)[0]


def json_schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA} | fields}}


def tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f"} | fields}]}


def test_each_way_to_ask_for_json_makes_the_same_grammar() -> None:
    expected = grammar.of_schema(SCHEMA)
    assert rules(**json_schema(strict=False, description="An answer.")) == expected
    assert (
        rules(structured_outputs={"json": SCHEMA}) == rules(structured_outputs={"json": json.dumps(SCHEMA)}) == expected
    )
    assert rules(response_format={"type": "json_object"}) == rules(structured_outputs={"json_object": True})
    assert rules() == rules(response_format={"type": "text"}) == rules(tools=[F, G]) == ""


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"response_format": {"type": "xml"}}, Code.INVALID_PARAMETER, "response_format.type"),
        ({"response_format": {"type": "text", "strict": 1}}, Code.UNSUPPORTED_PARAMETER, "response_format.strict"),
        ({"response_format": {"type": "json_schema"}}, Code.INVALID_PARAMETER, "response_format.json_schema"),
        (json_schema(name="a b"), Code.INVALID_PARAMETER, "response_format.json_schema.name"),
        (json_schema(schema=True), Code.INVALID_PARAMETER, "response_format.json_schema.schema"),
        (json_schema(strict="yes"), Code.INVALID_PARAMETER, "response_format.json_schema.strict"),
        (json_schema(extra=1), Code.UNSUPPORTED_PARAMETER, "response_format.json_schema.extra"),
        (
            json_schema(schema={"enum": [f"{number:09}" for number in range(20_000)]}),
            Code.INVALID_PARAMETER,
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {}}, Code.INVALID_PARAMETER, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, Code.INVALID_PARAMETER, "structured_outputs"),
        ({"structured_outputs": {"grammar": "root"}}, Code.UNSUPPORTED_PARAMETER, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": "{"}}, Code.INVALID_PARAMETER, "structured_outputs.json"),
        ({"structured_outputs": {"json": [1]}}, Code.INVALID_PARAMETER, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": False}}, Code.INVALID_PARAMETER, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": ""}}, Code.INVALID_PARAMETER, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a", ""]}}, Code.INVALID_PARAMETER, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": []}}, Code.INVALID_PARAMETER, "structured_outputs.choice"),
        (json_schema() | {"structured_outputs": {"regex": "a"}}, Code.INVALID_PARAMETER, "structured_outputs"),
        ({"tools": [{"type": "retrieval"}]}, Code.UNSUPPORTED_PARAMETER, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, Code.INVALID_PARAMETER, "tools[0].function"),
        ({"tools": [F | {"cache": 1}]}, Code.UNSUPPORTED_PARAMETER, "tools[0].cache"),
        ({"tools": [F, F]}, Code.INVALID_PARAMETER, "tools[1].function.name"),
        ({"tools": [F] * 129}, Code.INVALID_PARAMETER, "tools"),
        (tool(name="a b"), Code.INVALID_PARAMETER, "tools[0].function.name"),
        (tool(strict=1), Code.INVALID_PARAMETER, "tools[0].function.strict"),
        (tool(description=1), Code.INVALID_PARAMETER, "tools[0].function.description"),
        (tool(parameters=[]), Code.INVALID_PARAMETER, "tools[0].function.parameters"),
        (tool(parameters={"type": "array"}), Code.INVALID_PARAMETER, "tools[0].function.parameters"),
        (tool(returns={}), Code.UNSUPPORTED_PARAMETER, "tools[0].function.returns"),
        ({"tool_choice": "required"}, Code.INVALID_PARAMETER, "tool_choice"),
        ({"tools": [F], "tool_choice": "always"}, Code.INVALID_PARAMETER, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "allowed_tools"}}, Code.UNSUPPORTED_PARAMETER, "tool_choice.type"),
        (
            {"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            Code.INVALID_PARAMETER,
            "tool_choice.function.name",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(fields: dict[str, Any], code: Code, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        rules(**fields)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_only_what_must_follow_a_schema_costs_a_grammar() -> None:
    strict = [{"type": "function", "function": STRICT}, G]
    assert rules(tools=strict).startswith("output: TEXT | ")
    assert rules(tools=strict, tool_choice="none") == ""
    assert rules(tools=[F, G], tool_choice="required").startswith("output: calls\ncalls: call (")
    assert "(" not in rules(tools=[F], tool_choice="required", parallel_tool_calls=False).splitlines()[1]
    assert "(" not in rules(LLAMA, tools=[F], tool_choice="required").splitlines()[1]
    named = rules(tools=[F, G], tool_choice={"type": "function", "function": {"name": "g"}})
    assert "body_0" in named
    assert "body_1" not in named


def test_json_of_a_schema_may_be_answered_where_calls_may_be_made() -> None:
    assert rules(tools=[F], **json_schema()).startswith("output: %json")
    assert "| calls" in rules(tools=[F], **json_schema())
    with pytest.raises(ApiError) as caught:
        rules(tools=[F], structured_outputs={"regex": "a"})
    assert caught.value.param == "structured_outputs.regex"


def messages(*given: dict[str, Any]) -> list[dict[str, Any]]:
    prompt = parsed(messages=list(given)).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.has_calls
    return json.loads(prompt.messages)


def test_calls_and_their_results_are_rendered_with_arguments_as_an_object() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert messages(
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
    ) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": "call_1", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "call_1"},
    ]


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (1, "messages[0].tool_calls[0]"),
        ({"type": "custom", "function": {}}, "messages[0].tool_calls[0]"),
        ({"function": {"name": "f"}}, "messages[0].tool_calls[0]"),
        ({"function": {"name": "f", "arguments": "[]"}}, "messages[0].tool_calls[0].function.arguments"),
        ({"function": {"name": "f", "arguments": '{"a": NaN}'}}, "messages[0].tool_calls[0].function.arguments"),
    ],
)
def test_a_call_that_is_none_is_named(call: Any, path: str) -> None:
    with pytest.raises(ApiError) as caught:
        messages({"role": "assistant", "tool_calls": [call]})
    assert (caught.value.code, caught.value.param) == (Code.INVALID_PARAMETER, path)
