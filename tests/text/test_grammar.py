"""Whatever a model wants to say, what a grammar lets through is what was asked for."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.text import grammar
from dataplane.text.grammar import HERMES, LLAMA, MAX_GRAMMAR_BYTES, CallForm, Functions, GrammarRefused
from dataplane.text.matcher import Matcher, MatcherError, TokenTable
from dataplane.text.tool_calls import CallPart, CallReader

END, CONTROL = 2, 1
WORDS = ['{"', '":', '", "', "true", "null", "</tool_call>", "<tool_call>", "name", "é", "🙂"]
TOKENS = [b"<pad>", b"", b"", *(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS)]
TABLE = TokenTable([b"", *TOKENS[1:]], [END])


def allowed(matcher: Matcher) -> list[int]:
    bits = int.from_bytes(matcher.allowed(), "little")
    return [token_id for token_id in range(len(TOKENS)) if bits >> token_id & 1]


def written(rules: str, seed: int, table: TokenTable = TABLE, most: int = 500) -> str | None:
    """What a model that draws any token with equal chance writes; None if it has not ended by then."""
    rng, matcher, raw = random.Random(seed), table.compile(rules), b""
    for _ in range(most):
        choices = allowed(matcher)
        if rng.random() < 0.9:  # else most of it is space
            choices = [token_id for token_id in choices if TOKENS[token_id].strip() or token_id == END] or choices
        token_id = END if END in choices and rng.random() < 0.5 else rng.choice(choices)
        if token_id == END:
            return raw.decode()
        assert TOKENS[token_id]
        raw += TOKENS[token_id]
        matcher.accept([token_id])
    return None


def _range(low: int, more: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": low + more}


_FIXED: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"type": "null"},
    {"const": {"a": [1, 'é\n"<']}},
    {"type": "string", "pattern": "^[a-c]{1,3}$"},
    {"type": "string", "maxLength": 6},
]
_VALUES = st.lists(st.text(max_size=4) | st.integers() | st.none(), min_size=1, max_size=4, unique_by=repr)
_LEAVES = st.one_of(
    st.builds(_range, st.integers(-99, 99), st.integers(0, 50)),
    st.sampled_from(_FIXED),
    st.builds(lambda values: {"enum": values}, _VALUES),
)


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
    return st.builds(
        lambda properties, optional: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name not in optional],
            "additionalProperties": False,
        },
        st.dictionaries(names, inner, max_size=3),
        st.sets(names, max_size=2),
    )


_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        _objects(inner),
        st.builds(lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 2)),
        st.builds(lambda either, other: {"anyOf": [either, other]}, inner, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=40, deadline=None)
@given(_SCHEMAS, st.integers(0, 2**32))
def test_what_follows_a_schema_is_valid_under_it(schema: dict[str, Any], seed: int) -> None:
    text = written(grammar.of_schema(schema), seed)
    if text is not None:
        jsonschema.validate(json.loads(text), schema)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(0, 99),
)
def test_what_follows_choices_is_one_of_them(choices: list[str], seed: int) -> None:
    assert written(grammar.of_choice(choices), seed) in choices


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-f]{3}-\\d{2}",
        "a/b|c\\/d",
        "(yes|no)( really){0,2}",
        "\\w\\W\\d\\D",
        "line\nbreak\\n",
        "\\\\/x\\\\",
        "[\\d/]{3}",
    ],
)
def test_what_follows_an_expression_matches_it_from_end_to_end(pattern: str) -> None:
    for seed in range(8):
        text = written(grammar.of_regex(pattern), seed)
        assert text is not None
        assert re.fullmatch(pattern, text), text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_no_expression_ends_the_rule_it_stands_in(pattern: str) -> None:
    (line,) = grammar.of_regex(pattern).splitlines(keepends=True)[:1]
    inside = line.removeprefix("output: /").removesuffix("/\n")
    assert not re.search(r"(?<!\\)(\\\\)*/", inside)
    assert "\n" not in inside


def test_only_where_the_grammar_may_end_may_the_answer() -> None:
    matcher = TABLE.compile(grammar.of_regex("ab?"))
    assert END not in allowed(matcher)
    matcher.accept([TOKENS.index(b"a")])
    assert allowed(matcher) == [END, TOKENS.index(b"b")]
    matcher.accept([TOKENS.index(b"b")])
    assert allowed(matcher) == [END]


def test_control_tokens_are_never_allowed() -> None:
    matcher = TABLE.compile(grammar.of_regex("(.|\n)*"))
    assert {0, CONTROL} & set(allowed(matcher)) == set()
    assert len(allowed(matcher)) > 150


def test_a_token_that_leaves_the_grammar_fails_the_matcher_for_good() -> None:
    matcher = TABLE.compile(grammar.of_choice(["yes"]))
    with pytest.raises(MatcherError):
        matcher.accept([TOKENS.index(b"n")])
    with pytest.raises(MatcherError):
        matcher.allowed()


def test_text_that_the_detokenizer_takes_off_in_front_is_written_first() -> None:
    table = TokenTable(TOKENS, [END], prefix=" ")
    assert {written(grammar.of_choice(["a", "b"]), seed, table) for seed in range(9)} == {" a", " b"}


def test_space_in_json_never_goes_on_without_an_end() -> None:
    matcher = TABLE.compile(grammar.of_schema({"type": "object"}))
    space = TOKENS.index(b" ")
    matcher.accept([TOKENS.index(b"{")])
    count = 0
    while space in allowed(matcher):
        matcher.accept([space])
        count += 1
    assert 32 <= count <= 64


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: grammar.of_regex("(a"), "unclosed group"),
        (lambda: grammar.of_regex("a\\"), "cannot be read"),
        (lambda: grammar.of_regex("a(?=b)"), "look-around"),
        (lambda: grammar.of_schema({"not": {}}), "not"),
        (lambda: grammar.of_schema({"$ref": "#"}), "nothing can match"),
        (lambda: grammar.of_schema({"$ref": "file:///etc/passwd"}), "retrieving it failed"),
        (lambda: grammar.of_schema({"type": "integer", "minimum": 2, "maximum": 1}), "greater than maximum"),
        (lambda: grammar.of_schema({"if": {}, "x-guidance": {"lenient": True}}), "if"),
    ],
)
def test_what_cannot_be_followed_is_told_with_its_reason(make: Callable[[], str], said: str) -> None:
    with pytest.raises(MatcherError) as caught:
        written(make(), 0)
    assert said in str(caught.value)
    assert "output" not in str(caught.value)


def test_a_grammar_of_more_than_its_limit_is_refused() -> None:
    with pytest.raises(GrammarRefused, match=str(MAX_GRAMMAR_BYTES)):
        grammar.of_choice([f"{number:09}" for number in range(100_000)])


_WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "</tool_call>"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
_NOW = {"type": "object", "properties": {}, "additionalProperties": False}


def functions(form: CallForm, *, several: bool = False) -> Functions:
    return Functions(form, {"get_weather": _WEATHER, "now": _NOW}, several)


@pytest.mark.parametrize("form", [HERMES, LLAMA], ids=lambda form: form.name)
def test_what_must_be_a_call_is_a_valid_one(form: CallForm) -> None:
    names = set()
    for seed in range(12):
        text = written(grammar.of_calls(functions(form)), seed)
        assert text is not None
        call, arguments = CallReader(form, ["get_weather", "now"]).push(text, last=True)
        assert isinstance(call, CallPart)
        assert isinstance(arguments, CallPart)
        jsonschema.validate(json.loads(arguments.arguments), {"get_weather": _WEATHER, "now": _NOW}[call.name])
        names.add(call.name)
    assert names == {"get_weather", "now"}


def test_several_calls_may_follow_each_other_where_they_may_be_several() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for several, last in ((True, [TOKENS.index(b"\n")]), (False, [])):
        matcher = TABLE.compile(grammar.of_calls(functions(HERMES, several=several)))
        for text in (call, f"\n{call}", f"\n{call}")[: 3 if several else 1]:
            matcher.accept([TOKENS.index(bytes([byte])) for byte in text.encode()])
            assert allowed(matcher) == [END, *last]


@pytest.mark.parametrize(
    ("form", "begun"),
    [(HERMES, 'Well.\n<tool_call>\n{"name": "get_'), (LLAMA, '{"name": "get_')],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_call_that_is_begun_among_text_can_only_become_a_valid_one(form: CallForm, begun: str) -> None:
    matcher = TABLE.compile(grammar.of_text_or_calls(functions(form)))
    assert END in allowed(matcher)
    matcher.accept([TOKENS.index(bytes([byte])) for byte in begun.encode()])
    assert allowed(matcher) == [TOKENS.index(b"w")]


def test_a_json_answer_or_a_call_may_be_given() -> None:
    rules = grammar.of_json_or_calls({"type": "object"}, functions(HERMES))
    assert [TOKENS[token_id][:1] for token_id in allowed(TABLE.compile(rules))] == [b"<", b"{", b"{", b"<"]
