"""Structured answers and calls of tools out of a real worker, whose model is random: what it says is not its choice."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import psutil
import pytest
from calling_model import make_calling_model
from worker_process import WorkerProcess

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.fixture(scope="module")
def calling_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    model = make_calling_model(tmp_path_factory.mktemp("models") / "calling", "hermes")
    folder = Path(tempfile.mkdtemp(prefix="pgd-", dir="/tmp"))
    with WorkerProcess(folder, model) as process:
        yield process
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def client(calling_worker: WorkerProcess) -> Iterator[httpx.Client]:
    with calling_worker.client() as found:
        yield found


def chat(client: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"model": "calling", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "seed": 7}
    return client.post("/v1/chat/completions", json=body | fields)


def choices(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["choices"]
    return found


def error(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    found: dict[str, Any] = answer.json()["error"]
    return found


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def streamed(client: httpx.Client, **fields: Any) -> tuple[str, list[dict[str, Any]], str | None]:
    """What the deltas of a stream add up to: its text, its calls, and how it ended."""
    text, calls, reason = "", [], None
    lines = [line.removeprefix("data: ") for line in chat(client, stream=True, **fields).text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    for line in lines:
        (choice,) = json.loads(line)["choices"]
        text += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls", []):
            if "id" in part:
                assert part["type"] == "function"
                assert part["index"] == len(calls)
                calls.append({"name": part["function"]["name"], "arguments": ""})
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    return text, calls, reason


def test_every_choice_follows_the_schema_and_the_stream_says_the_same(client: httpx.Client) -> None:
    asked = {"response_format": json_schema(PERSON), "n": 2}
    found = choices(chat(client, **asked))
    assert [choice["finish_reason"] for choice in found] == ["stop", "stop"]
    texts = [choice["message"]["content"] for choice in found]
    for text in texts:
        jsonschema.validate(json.loads(text), PERSON)
    assert texts[0] != texts[1]
    assert streamed(client, response_format=json_schema(PERSON)) == (texts[0], [], "stop")


def test_an_expression_choices_and_json_hold_in_a_plain_completion_too(client: httpx.Client) -> None:
    def complete(**outputs: Any) -> str:
        body = {"model": "calling", "prompt": "Say", "max_tokens": 300, "seed": 1, "structured_outputs": outputs}
        answer = client.post("/v1/completions", json=body)
        (choice,) = choices(answer)
        assert choice["finish_reason"] == "stop"
        return choice["text"]

    assert re.fullmatch("[a-f]{2}-[0-9]{3}", complete(regex="[a-f]{2}-\\d{3}"))
    assert complete(choice=["red", "grün", "blau 🙂"]) in ("red", "grün", "blau 🙂")
    jsonschema.validate(json.loads(complete(json=json.dumps(PERSON))), PERSON)


def test_an_answer_cut_short_says_so(client: httpx.Client) -> None:
    (choice,) = choices(chat(client, response_format=json_schema(PERSON), max_tokens=3))
    assert choice["finish_reason"] == "length"
    (choice,) = choices(chat(client, structured_outputs={"choice": ["abcdef"]}, stop="d"))
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "abc")


def test_what_excludes_itself_fails_alone_and_says_why(client: httpx.Client) -> None:
    found = error(chat(client, structured_outputs={"choice": ["yes"]}, min_tokens=20))
    assert found["code"] == "grammar_failed"
    assert "min_tokens" in found["message"]
    assert error(chat(client, response_format={"type": "json_object"}, ignore_eos=True))["param"] == "ignore_eos"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": json_schema({"not": {}})}, "response_format.json_schema.schema", "not"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]},
            "tools",
            "not",
        ),
    ],
    ids=["schema", "expression", "arguments"],
)
def test_a_form_that_cannot_be_had_is_a_400_by_its_field(
    client: httpx.Client, fields: dict[str, Any], param: str, said: str
) -> None:
    found = error(chat(client, **fields))
    assert found["param"] == param
    assert said in found["message"]


def test_a_call_that_is_required_is_made_and_the_stream_says_the_same(client: httpx.Client) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    (choice,) = choices(chat(client, **asked))
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    function = call["function"]
    jsonschema.validate(json.loads(function["arguments"]), CITY if function["name"] == "get_weather" else {})
    assert streamed(client, **asked) == ("", [function], "tool_calls")


def test_a_call_is_streamed_as_it_comes_and_the_official_client_adds_it_up(calling_worker: WorkerProcess) -> None:
    client = openai.OpenAI(base_url=f"{calling_worker.url}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": "Hi"}]
    tools: Any = TOOLS
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    with client.chat.completions.stream(
        model="calling", messages=messages, tools=tools, tool_choice=named, max_tokens=200, seed=2
    ) as stream:
        parts = [
            call.function
            for event in stream
            if event.type == "chunk"
            for call in event.chunk.choices[0].delta.tool_calls or []
        ]
        whole = stream.get_final_completion().choices[0]
    assert [part.name for part in parts if part is not None] == ["get_weather"] + [None] * (len(parts) - 1)
    assert len(parts) > 3
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls or []
    jsonschema.validate(json.loads(call.function.arguments), CITY)


def test_the_function_that_is_named_is_called_as_the_official_client_reads_it(calling_worker: WorkerProcess) -> None:
    client = openai.OpenAI(base_url=f"{calling_worker.url}/v1", api_key="none", max_retries=0)
    question: Any = {"role": "user", "content": "Hi"}
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    tools: Any = TOOLS
    answer = client.chat.completions.create(
        model="calling", messages=[question], tools=tools, tool_choice=named, max_tokens=200, seed=2
    )
    message = answer.choices[0].message
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    jsonschema.validate(json.loads(call.function.arguments), CITY)
    history: Any = [question, message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
    again = client.chat.completions.create(model="calling", messages=history, tools=tools, max_tokens=4)
    assert again.usage is not None
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens + 40  # type: ignore[union-attr]


def test_tools_are_shown_to_the_model_unless_none_is_to_be_called(client: httpx.Client) -> None:
    def prompt_tokens(**fields: Any) -> int:
        answer = chat(client, max_tokens=1, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["prompt_tokens"]

    assert prompt_tokens(tools=TOOLS) > prompt_tokens() + 100
    assert prompt_tokens(tools=TOOLS, tool_choice="none") == prompt_tokens()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS}, "tools"),
        ({"messages": [{"role": "tool", "content": "Sunny.", "tool_call_id": "call_1"}]}, "messages"),
    ],
)
def test_a_model_whose_template_knows_no_tools_says_so(
    worker: WorkerProcess, fields: dict[str, Any], param: str
) -> None:
    with worker.client() as client:
        found = error(chat(client, model="tiny", **fields))
        assert (found["code"], found["param"]) == ("unsupported_parameter", param)
        assert "does not show tools" in found["message"]


def test_the_death_of_the_child_under_an_answer_is_not_seen_in_it(
    calling_worker: WorkerProcess, client: httpx.Client
) -> None:
    asked = {"response_format": json_schema(PERSON), "seed": 11}
    (alone,) = choices(chat(client, **asked))
    with client.stream(
        "POST",
        "/v1/chat/completions",
        json={"model": "calling", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "stream": True}
        | asked,
    ) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        engine = calling_worker.child("dataplane.worker.engine_process")
        for child in psutil.Process(engine.pid).children():
            child.kill()
        chunks = [json.loads(line[6:]) for line in [first, *lines] if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == alone["message"]["content"]
