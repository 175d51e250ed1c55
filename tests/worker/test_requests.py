import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.sampling import SamplingParams
from dataplane.worker import parameters, requests
from dataplane.worker.prompts import ChatPrompt, TextPrompt, TokenPrompt
from dataplane.worker.requests import GenerationRequest

PROMPT = {"model": "m", "prompt": "hi"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def completion(**fields: Any) -> GenerationRequest:
    return requests.parse_completion(json.dumps(PROMPT | fields).encode())


def chat(**fields: Any) -> GenerationRequest:
    return requests.parse_chat(json.dumps(CHAT | fields).encode())


def refusal(call: Any, *arguments: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*arguments, **fields)
    return caught.value


UNSUPPORTED = {
    "best_of": 3,
    "suffix": "end",
    "length_penalty": 1.1,
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy"},
    "prediction": {"type": "content"},
    "reasoning_effort": "low",
    "service_tier": "flex",
    "store": True,
    "web_search_options": {},
    "guided_json": {},
    "use_beam_search": True,
    "prompt_logprobs": 1,
    "verbosity": "low",
    "cache_salt": "mine",
    "prompt_cache_key": "mine",
    "kv_transfer_params": {},
    "no_such_parameter": 1,
}


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.parametrize("call", [completion, chat])
def test_a_parameter_that_is_not_supported_is_named(call: Any, name: str) -> None:
    error = refusal(call, **{name: UNSUPPORTED[name]})
    assert (error.code, error.param) == (Code.UNSUPPORTED_PARAMETER, name)
    assert name in error.message


@pytest.mark.parametrize(("name", "values"), parameters._ASKS_NOTHING.items())
def test_the_documented_default_of_an_unsupported_parameter_is_accepted(name: str, values: tuple[Any, ...]) -> None:
    for value in (*values, None):
        assert chat(**{name: value}) == chat()


def test_true_is_not_one_and_false_is_not_zero() -> None:
    assert refusal(completion, n=True).param == "n"
    assert refusal(completion, presence_penalty=False).param == "presence_penalty"
    assert refusal(completion, length_penalty=True).param == "length_penalty"
    assert refusal(completion, logprobs=True).param == "logprobs"  # a chat's; here it is a number
    assert refusal(chat, logprobs=1).param == "logprobs"
    assert completion(logprobs=0).logprobs == 0  # asks for the chosen token's log probability
    assert chat(logprobs=False).logprobs is None


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("temperature", 2.5, "from 0 to 2"),
        ("temperature", -0.1, "from 0 to 2"),
        ("top_p", 1.5, "from 0 to 1"),
        ("top_p", 0, "above 0"),
        ("top_k", -2, "at least -1"),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", 2**40, "at least 1"),
        ("min_tokens", -1, "at least 0"),
        ("n", 0, "from 1 to 16"),
        ("n", 17, "from 1 to 16"),
        ("min_p", 1.1, "from 0 to 1"),
        ("presence_penalty", 2.1, "from -2 to 2"),
        ("frequency_penalty", -2.1, "from -2 to 2"),
        ("repetition_penalty", 0, "from 0.1 to 10"),
        ("logprobs", 6, "from 0 to 5"),
        ("logprobs", -1, "from 0 to 5"),
        ("logit_bias", {str(number): 1 for number in range(301)}, "at most 300"),
        ("seed", 2**63, "from -9"),
        ("stop", ["a"] * 5, "at most 4"),
        ("stop", "", "1 to 1024"),
        ("stop", ["a", ""], "1 to 1024"),
        ("stop_token_ids", [1] * 65, "at most 64"),
        ("model", "m" * 257, "at most 256"),
        ("user", "u" * 513, "at most 512"),
        ("metadata", {str(number): "" for number in range(17)}, "at most 16"),
        ("metadata", {"k": "v" * 513}, "at most 512"),
        ("prompt", "", "must not be empty"),
        ("prompt", [], "must not be empty"),
    ],
)
def test_a_value_out_of_range_names_the_field_and_what_is_allowed(field: str, value: object, allowed: str) -> None:
    error = refusal(completion, **{field: value})
    assert (error.code, error.param) == (Code.INVALID_PARAMETER, field)
    assert allowed in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", "5"),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", "hot"),
        ("temperature", True),
        ("stream", "yes"),
        ("stream", 1),
        ("stop", 7),
        ("stop", [1]),
        ("ignore_eos", 1),
        ("seed", 1.5),
        ("model", 5),
        ("prompt", {"a": 1}),
        ("prompt", [1, "a"]),
        ("prompt", [1.5]),
        ("prompt", [True]),
        ("metadata", {"a": 1}),
        ("metadata", "a"),
        ("user", 5),
        ("stream_options", "all"),
        ("n", "2"),
        ("logit_bias", {"five": 1}),
        ("logit_bias", {"5": "much"}),
        ("logit_bias", [5]),
        ("echo", 1),
    ],
)
def test_a_value_of_the_wrong_type_names_the_field(field: str, value: object) -> None:
    error = refusal(completion, **{field: value})
    assert error.code is Code.INVALID_PARAMETER
    assert (error.param or "").split("[")[0].split(".")[0] == field


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_a_missing_field_is_named(missing: str) -> None:
    fields = {name: value for name, value in PROMPT.items() if name != missing}
    error = refusal(requests.parse_completion, json.dumps(fields).encode())
    assert (error.code, error.param) == (Code.INVALID_PARAMETER, missing)


def test_prompts_of_every_supported_form() -> None:
    assert completion(prompt="a").prompt == TextPrompt("a")
    assert completion(prompt=["a"]).prompt == TextPrompt("a")
    assert completion(prompt=[5, 6]).prompt == TokenPrompt([5, 6])
    assert completion(prompt=[[5, 6]]).prompt == TokenPrompt([5, 6])


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]]])
def test_several_prompts_in_one_request_are_refused_by_name(prompt: list) -> None:
    error = refusal(completion, prompt=prompt)
    assert (error.code, error.param) == (Code.UNSUPPORTED_PARAMETER, "prompt")


def messages_of(request: GenerationRequest) -> list[dict[str, str]]:
    assert isinstance(request.prompt, ChatPrompt)
    return json.loads(request.prompt.messages)


def test_text_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(messages=[{"role": "developer", "content": "be kind"}, {"role": "user", "content": parts}])
    assert messages_of(request) == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a\nb"}]


def test_an_earlier_answer_can_be_sent_back_as_history() -> None:
    answer = {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": None, "annotations": []}
    assert messages_of(chat(messages=[answer])) == [{"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize(
    ("message", "code", "path"),
    [
        ({"role": "function", "content": "x"}, Code.UNSUPPORTED_PARAMETER, "messages[0].role"),
        ({"role": "user", "content": "x", "name": "bob"}, Code.UNSUPPORTED_PARAMETER, "messages[0].name"),
        (
            {"role": "user", "content": "x", "tool_calls": [1]},
            Code.UNSUPPORTED_PARAMETER,
            "messages[0].tool_calls",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            Code.UNSUPPORTED_PARAMETER,
            "messages[0].content[0].type",
        ),
        ({"role": "owner", "content": "x"}, Code.INVALID_PARAMETER, "messages[0].role"),
        ({"content": "x"}, Code.INVALID_PARAMETER, "messages[0].role"),
        ({"role": "user"}, Code.INVALID_PARAMETER, "messages[0].content"),
        ({"role": "user", "content": []}, Code.INVALID_PARAMETER, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, Code.INVALID_PARAMETER, "messages[0].content[0].text"),
        ({"role": "user", "content": ["x"]}, Code.INVALID_PARAMETER, "messages[0].content[0]"),
    ],
)
def test_a_message_that_cannot_be_rendered_names_the_path(message: dict, code: Code, path: str) -> None:
    error = refusal(chat, messages=[message])
    assert (error.code, error.param) == (code, path)


def test_a_bias_out_of_range_names_its_token() -> None:
    error = refusal(completion, logit_bias={"5": 1, "7": -100.5})
    assert (error.code, error.param) == (Code.INVALID_PARAMETER, "logit_bias.7")
    assert "from -100 to 100" in error.message
    assert completion(logit_bias={"5": 100, "7": -100}).logit_bias == {5: 100, 7: -100}


def test_the_likeliest_tokens_of_a_chat_come_only_with_its_log_probabilities() -> None:
    assert chat(logprobs=True).logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).logprobs == 20
    assert refusal(chat, top_logprobs=2).param == "top_logprobs"
    assert refusal(chat, logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refusal(completion, top_logprobs=2).code is Code.UNSUPPORTED_PARAMETER


def test_best_of_is_accepted_where_it_asks_for_no_more_than_n() -> None:
    assert completion(best_of=3, n=3) == completion(n=3)
    assert refusal(completion, best_of=2).param == refusal(completion, best_of=2, n=3).param == "best_of"


def test_echo_is_for_plain_completions() -> None:
    assert completion(echo=True).echo
    assert refusal(chat, echo=True).code is Code.UNSUPPORTED_PARAMETER


def test_stream_options_belong_to_streams() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={"include_usage": False}).include_usage
    assert chat(stream=True, stream_options={"include_obfuscation": None}).padded
    assert not chat(stream=True, stream_options={"include_obfuscation": False}).padded
    assert chat(stream=True).padded
    assert refusal(chat, stream_options={"include_usage": True}).param == "stream_options"
    assert refusal(chat, stream=True, stream_options={"include_usage": 1}).param == "stream_options.include_usage"
    error = refusal(chat, stream=True, stream_options={"include_obfuscation": "no"})
    assert (error.code, error.param) == (Code.INVALID_PARAMETER, "stream_options.include_obfuscation")
    assert refusal(chat, stream=True, stream_options={"x": 1}).code is Code.UNSUPPORTED_PARAMETER


def test_the_newer_name_of_max_tokens_may_not_contradict_the_older() -> None:
    assert chat(max_completion_tokens=5).max_tokens == 5
    assert chat(max_completion_tokens=5, max_tokens=5).max_tokens == 5
    assert refusal(chat, max_completion_tokens=5, max_tokens=6).param == "max_completion_tokens"
    assert refusal(completion, max_completion_tokens=5).code is Code.UNSUPPORTED_PARAMETER


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"model": "m", "model": "m", "prompt": "x"}',
        b'{"model": "m", "prompt": "x", "temperature": NaN}',
        b'{"model": "m", "prompt": "x", "temperature": Infinity}',
        b'{"model": "m", "prompt": "x", "temperature": 1e999}',
        b'{"model": "m", "prompt": "\\ud800"}',
        b'{"model": "m", "prompt": "x\x00"}',
        b'{"model": "m", "metadata": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"model": "m", "prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        '{"model": "m", "prompt": "x"}'.encode("utf-16"),
    ],
)
def test_a_body_with_more_than_one_reading_is_refused(body: bytes) -> None:
    assert refusal(requests.parse_completion, body).code is Code.INVALID_JSON


@pytest.mark.parametrize("field", ["prompt", "stop", "user", "model"])
def test_a_nul_character_is_refused_anywhere(field: str) -> None:
    error = refusal(completion, **{field: "a\0b"})
    assert error.code is Code.INVALID_REQUEST
    assert refusal(completion, metadata={"a\0": "b"}).code is Code.INVALID_REQUEST


def test_an_escaped_backslash_before_u0000_is_only_text() -> None:
    assert completion(prompt="\\u0000").prompt == TextPrompt("\\u0000")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
names = st.sampled_from(sorted(parameters.CHAT | parameters.COMPLETION | UNSUPPORTED.keys())) | st.text(max_size=5)


@given(st.dictionaries(names, json_values, max_size=6), st.booleans())
def test_whatever_is_sent_is_parsed_or_refused(fields: dict, as_chat: bool) -> None:
    body = json.dumps((CHAT if as_chat else PROMPT) | fields, allow_nan=True).encode("utf-8", "surrogatepass")
    with contextlib.suppress(ApiError):  # anything else that is raised fails the test
        (requests.parse_chat if as_chat else requests.parse_completion)(body)


def sampling(request: GenerationRequest, prompt_tokens: int, context: int = 100, fill: int = 100) -> Any:
    return requests.sampling_of(request, prompt_tokens, context, fill, vocab_size=50)


def test_absent_max_tokens_fills_the_context_or_the_tenants_cap() -> None:
    assert sampling(completion(), 30).max_tokens == 70
    assert sampling(completion(), 30, fill=48).max_tokens == 18
    assert sampling(completion(), 60, fill=48).max_tokens == 1  # the engine refuses it, naming its numbers


@pytest.mark.parametrize("prompt_tokens", [100, 101, 5000])
def test_a_prompt_over_the_context_names_both_numbers(prompt_tokens: int) -> None:
    error = refusal(sampling, completion(), prompt_tokens)
    assert (error.code, error.param) == (Code.CONTEXT_LENGTH_EXCEEDED, "prompt")
    assert str(prompt_tokens) in error.message
    assert "100" in error.message
    assert refusal(sampling, chat(), prompt_tokens).param == "messages"


def test_max_tokens_past_the_context_names_all_numbers() -> None:
    error = refusal(sampling, completion(max_tokens=80), 30)
    assert (error.code, error.param) == (Code.CONTEXT_LENGTH_EXCEEDED, "max_tokens")
    assert all(number in error.message for number in ("30", "80", "110", "100"))
    assert sampling(completion(max_tokens=70), 30).max_tokens == 70


def test_min_tokens_and_token_ids_are_checked_against_the_model() -> None:
    assert refusal(sampling, completion(max_tokens=5, min_tokens=6), 1).param == "min_tokens"
    assert refusal(sampling, completion(stop_token_ids=[50]), 1).param == "stop_token_ids"
    assert refusal(sampling, completion(logit_bias={"50": 1}), 1).param == "logit_bias"
    assert refusal(sampling, completion(logit_bias={"-1": 1}), 1).param == "logit_bias"
    assert refusal(requests.check_token_ids, [1, -1], 50).param == "prompt"
    assert refusal(requests.check_token_ids, [1, 50], 50).param == "prompt"


def test_an_answer_of_too_many_log_probabilities_is_refused_with_its_number() -> None:
    most = parameters.MAX_SCORES // 4 // 6
    fits = completion(n=4, logprobs=5, max_tokens=most)
    assert sampling(fits, 1, context=10**6).logprobs == 5
    error = refusal(sampling, completion(n=4, logprobs=5, max_tokens=most, echo=True), 5, context=10**6)
    assert (error.code, error.param) == (Code.INVALID_PARAMETER, "logprobs")
    assert str(4 * (most + 5) * 6) in error.message
    assert sampling(completion(n=4, max_tokens=10**5), 1, context=10**6).logprobs is None


def test_the_prompt_is_scored_where_it_is_sent_back_with_log_probabilities() -> None:
    assert sampling(completion(echo=True, logprobs=1), 1).score_prompt
    assert not sampling(completion(echo=True), 1).score_prompt
    assert not sampling(completion(logprobs=1), 1).score_prompt


def test_a_seed_is_kept_and_without_one_no_two_requests_draw_alike() -> None:
    assert sampling(completion(seed=-5), 1).seed == -5
    assert sampling(completion(), 1).seed != sampling(completion(), 1).seed


def test_parsing_keeps_every_supported_value() -> None:
    request = completion(
        max_tokens=9, min_tokens=2, temperature=0.5, top_p=0.9, top_k=-1, seed=1, stop=["x"], stop_token_ids=[3],
        ignore_eos=True, stream=True, stream_options={"include_usage": True}, user="u", metadata={"a": "b"}, n=2,
        min_p=0.1, presence_penalty=0.2, frequency_penalty=-0.3, repetition_penalty=1.1, logit_bias={"4": 5},
        logprobs=2, echo=True,
    )  # fmt: skip
    params = sampling(request, 5)
    assert params == SamplingParams(
        max_tokens=9, temperature=0.5, top_p=0.9, top_k=0, min_p=0.1, presence_penalty=0.2, frequency_penalty=-0.3,
        repetition_penalty=1.1, logit_bias={4: 5}, seed=1, min_tokens=2, ignore_eos=True, stop_token_ids=(3,),
        logprobs=2, score_prompt=True,
    )  # fmt: skip
    assert (request.n, request.echo) == (2, True)
    assert (request.stops, request.stream, request.include_usage) == (("x",), True, True)
