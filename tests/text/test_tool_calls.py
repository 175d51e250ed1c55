"""Calls out of a model's text: the same however it is cut, and nothing that is not one."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.text.grammar import HERMES, LLAMA, CallForm
from dataplane.text.tool_calls import CallPart, CallReader

NAMES = ["get_weather", "now"]


def parts(text: str, form: CallForm = HERMES, cuts: list[int] | None = None) -> list[str | CallPart]:
    reader = CallReader(form, NAMES)
    borders = [0, *sorted(cuts or []), len(text)]
    said = [part for start, end in pairwise(borders) for part in reader.push(text[start:end])]
    return said + reader.push("", last=True)


def read(text: str, form: CallForm = HERMES, cuts: list[int] | None = None) -> tuple[str, list[tuple[str, str]]]:
    """What the parts add up to: the text, and each call's name and arguments."""
    said, calls = "", []
    for part in parts(text, form, cuts):
        if isinstance(part, str):
            said += part
        elif part.name:
            calls.append(tuple(part))
        else:
            calls[-1] = (calls[-1][0], calls[-1][1] + part.arguments)
    return said, calls


def tagged(name: str, **arguments: object) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


def test_calls_are_told_apart_from_what_is_said_before_them() -> None:
    text, calls = read(f"Let me look.\n{tagged('get_weather', city='Rome')}\n{tagged('now')}\n")
    assert text == "Let me look."
    assert calls == [("get_weather", '{"city": "Rome"}'), ("now", "{}")]


def test_a_call_is_told_as_it_comes_its_name_before_its_arguments() -> None:
    text = tagged("get_weather", city="Rome", days=[1, 2])
    said = parts(text, cuts=list(range(len(text))))
    arguments = '{"city": "Rome", "days": [1, 2]}'
    assert said == [CallPart("get_weather"), *(CallPart("", character) for character in arguments)]
    reader = CallReader(HERMES, NAMES)
    begun = text.index(arguments)
    assert reader.push(text[: begun - 1]) == []  # it might still be an array
    assert reader.push(text[begun - 1 : begun + 1]) == [CallPart("get_weather"), CallPart("", "{")]


_PIECES = st.sampled_from(
    ["", " ", "\n", "a < b", "<tool", "<tool_call>", "</tool_call>", "é🙂", "{", "}", '{"name": "now", "arguments": ',
     '{"name": "now", "parameters": {"a": "', tagged("now"), tagged("got"),
     tagged("get_weather", city="</tool_call>\n🙂")]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=6).map("".join), st.data())
def test_the_same_is_read_however_the_text_is_cut(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    for form in (HERMES, LLAMA):
        assert read(text, form, cuts) == read(text, form)
        assert read(text, form, list(range(len(text)))) == read(text, form)


@given(st.lists(st.sampled_from([" ", "a", "<", "tool", "\n", "<tool_call", "b"]), max_size=8).map("".join))
def test_text_without_a_call_comes_out_as_it_is(text: str) -> None:
    assert read(text) == (text, [])
    assert read(text, LLAMA) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        tagged("unknown"),
        '<tool_call>\n{"name": "now", "arguments": []}\n</tool_call>',
        '<tool_call>\n{"name": "now"}\n</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": ',
        "<tool_call>",
    ],
)
def test_what_begins_like_a_call_and_is_none_is_text(text: str) -> None:
    assert read(text) == (text, [])


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ('<tool_call>\n{"name": "now", "arguments": {"a": 1', '{"a": 1', ""),
        ('<tool_call>\n{"name": "now", "arguments": {"a": NaN}}\n</tool_call>', '{"a": NaN}', ""),
        ('<tool_call>{"name":"now","arguments":{}}', "{}", ""),
        ('<tool_call>{"name":"now","arguments":{}</tool_call> so', "{}", "so"),
        ('<tool_call>{"name": "now", "arguments": {}, "id": 1}</tool_call>', "{}", ', "id": 1}</tool_call>'),
        ('<tool_call>{"name":"now","arguments":{"a":"}\\"}"}}</tool_', '{"a":"}\\"}"}', "</tool_"),
    ],
)
def test_a_call_that_has_begun_is_one_however_it_goes_on(text: str, arguments: str, said: str) -> None:
    assert read(text) == (said, [("now", arguments)])
    assert read(text, cuts=list(range(len(text)))) == (said, [("now", arguments)])


def test_a_call_that_names_its_function_last_is_told_once_it_is_whole() -> None:
    text = '<tool_call>{"arguments": {"city": "Rome"}, "name": "get_weather"}</tool_call>'
    assert parts(text, cuts=list(range(len(text)))) == [CallPart("get_weather", '{"city":"Rome"}')]


def test_the_end_of_a_call_may_stand_in_its_arguments() -> None:
    assert read(tagged("get_weather", city="a</tool_call>b")) == ("", [("get_weather", '{"city": "a</tool_call>b"}')])


def test_a_call_of_llama_is_the_whole_answer() -> None:
    call = ' {"name": "get_weather", "parameters": {"city": "Rome"}}'
    assert read(call, LLAMA) == ("", [("get_weather", '{"city": "Rome"}')])
    assert read(f"{call} and more", LLAMA) == ("and more", [("get_weather", '{"city": "Rome"}')])
    for text in (f"Well: {call}", call.replace("parameters", "arguments"), "{}"):
        assert read(text, LLAMA) == (text, [])
