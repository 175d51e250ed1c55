"""Calls out of a model's text: the same however it is cut, and nothing that is not one."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.text.grammar import HERMES, LLAMA, CallForm
from dataplane.text.tool_calls import Call, CallReader

NAMES = ["get_weather", "now"]


def read(text: str, form: CallForm = HERMES, cuts: list[int] | None = None) -> tuple[str, list[Call]]:
    reader = CallReader(form, NAMES)
    borders = [0, *sorted(cuts or []), len(text)]
    said = [part for start, end in pairwise(borders) for part in reader.push(text[start:end])]
    said += reader.push("", last=True)
    return "".join(part for part in said if isinstance(part, str)), [part for part in said if isinstance(part, Call)]


def tagged(name: str, **arguments: object) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


def test_calls_are_told_apart_from_what_is_said_before_them() -> None:
    text, calls = read(f"Let me look.\n{tagged('get_weather', city='Rome')}\n{tagged('now')}\n")
    assert text == "Let me look."
    assert calls == [Call("get_weather", '{"city":"Rome"}'), Call("now", "{}")]


_PIECES = st.sampled_from(
    ["", " ", "\n", "a < b", "<tool", "<tool_call>", "</tool_call>", "é🙂", "{", tagged("now"), tagged("got"),
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
        '<tool_call>\n{"name": "now", "arguments": {}, \n</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": {"a": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": {}}',
        "<tool_call>",
    ],
)
def test_what_begins_like_a_call_and_is_none_is_text(text: str) -> None:
    assert read(text) == (text, [])


def test_the_end_of_a_call_may_stand_in_its_arguments() -> None:
    assert read(tagged("get_weather", city="a</tool_call>b")) == (
        "",
        [Call("get_weather", '{"city":"a</tool_call>b"}')],
    )


def test_a_call_of_llama_is_the_whole_answer() -> None:
    call = ' {"name": "get_weather", "parameters": {"city": "Rome"}}'
    assert read(call, LLAMA) == ("", [Call("get_weather", '{"city":"Rome"}')])
    for text in (f"Well: {call}", f"{call} and more", call.replace("parameters", "arguments"), "{}"):
        assert read(text, LLAMA) == (text, [])


def test_text_is_let_through_as_it_comes() -> None:
    reader = CallReader(HERMES, NAMES)
    assert reader.push("It is ") == ["It is"]
    assert reader.push("warm <to") == [" warm"]
    assert reader.push("day>") == [" <today>"]
    assert CallReader(LLAMA, NAMES).push("It") == ["It"]
