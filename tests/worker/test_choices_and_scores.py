"""Several choices, log probabilities, echo, penalties and bias, over the HTTP door of a real worker."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from worker_process import TIMEOUT_S, WorkerProcess

from dataplane.contracts import headers, ids
from dataplane.contracts.replica import Status
from dataplane.contracts.usage import RecordKind

PROMPT = "Once upon a time, in a land of small models"


@pytest.fixture
def client(worker: WorkerProcess) -> Iterator[httpx.Client]:
    with worker.client() as found:
        yield found


def body(**fields: Any) -> dict[str, Any]:
    defaults = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 1, "seed": 3, "ignore_eos": True}
    return defaults | fields


def complete(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json=body(**fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def chat(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hello"}]
    request = {"model": "tiny", "messages": messages, "max_tokens": 12, "seed": 3} | fields
    answer = client.post("/v1/chat/completions", json=request)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(client: httpx.Client, path: str = "/v1/completions", **fields: Any) -> list[dict[str, Any]]:
    request = body(stream=True, **fields)
    if "messages" in fields:
        del request["prompt"]
    lines = client.post(path, json=request).text.split("\n\n")
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data[-1] == "[DONE]"
    return [json.loads(piece) for piece in data[:-1]]


def of_choice(chunks: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == number]


def text_of(chunks: list[dict[str, Any]], number: int) -> str:
    return "".join(choice["text"] for choice in of_choice(chunks, number))


# -- several choices


def test_choices_are_numbered_differ_repeat_with_their_seed_and_count_their_prompt_once(client: httpx.Client) -> None:
    one, three = complete(client), complete(client, n=3)
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert three["choices"][0] == one["choices"][0]
    assert len({choice["text"] for choice in three["choices"]}) == 3
    assert complete(client, n=3)["choices"] == three["choices"]
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 3 * 24


def test_choices_stream_side_by_side_and_join_to_the_whole_ones(client: httpx.Client) -> None:
    whole = complete(client, n=3)
    chunks = streamed(client, n=3, stream_options={"include_usage": True})
    for choice in whole["choices"]:
        assert text_of(chunks, choice["index"]) == choice["text"]
        reasons = [piece["finish_reason"] for piece in of_choice(chunks, choice["index"])]
        assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len({choice["index"] for chunk in chunks[:-1] for choice in chunk["choices"]}) == 3


def test_each_choice_of_a_chat_begins_with_its_role(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hello"}]
    chunks = streamed(client, "/v1/chat/completions", messages=messages, n=2)
    for number in (0, 1):
        first, *rest = [choice["delta"] for choice in of_choice(chunks, number)]
        assert first["role"] == "assistant"
        assert all("role" not in delta for delta in rest)


def test_a_stop_string_ends_its_choice_and_the_others_go_on(client: httpx.Client) -> None:
    free = [choice["text"] for choice in complete(client, n=3, max_tokens=80)["choices"]]
    stop = next(c for c in free[1] if c != "\ufffd" and sum(c in text for text in free) < 3)
    answer = complete(client, n=3, max_tokens=80, stop=stop)
    for text, choice in zip(free, answer["choices"], strict=True):
        assert choice["text"] == text.partition(stop)[0]
        assert choice["finish_reason"] == ("stop" if stop in text else "length")
    assert answer["usage"]["completion_tokens"] < 3 * 80


def idle(status: Status) -> bool:
    load = status.load
    return status.pending == 0 and load is not None and load.owned_blocks == load.num_running == load.num_waiting == 0


def test_a_caller_that_leaves_takes_all_choices_along_and_is_billed_for_all(worker: WorkerProcess) -> None:
    request_id = ids.new_id(ids.Kind.REQUEST)
    told = {headers.REQUEST_ID: request_id, headers.TENANT: "ten_acme", headers.METER: "1"}
    with (
        worker.trusted_client() as client,
        client.stream("POST", "/v1/completions", json=body(n=4, stream=True, max_tokens=1800), headers=told) as stream,
    ):
        lines = stream.iter_lines()
        seen = [line for line in itertools.islice(lines, 40) if line.startswith(": t=")]
    worker.wait_status(idle)
    final = worker.wait_records(request_id, RecordKind.FINAL)[-1]
    delivered = int(seen[-1].split()[1].removeprefix("t="))
    assert delivered <= final.completion_tokens < 4 * 1800


def test_all_choices_are_billed_and_what_is_told_is_what_is_billed(worker: WorkerProcess) -> None:
    request_id = ids.new_id(ids.Kind.REQUEST)
    told = {headers.REQUEST_ID: request_id, headers.TENANT: "ten_acme"}
    with worker.trusted_client() as client:
        usage = client.post("/v1/completions", json=body(n=3), headers=told).json()["usage"]
    records = worker.wait_records(request_id, RecordKind.FINAL)
    assert [record.kind for record in records].count(RecordKind.FINAL) == 1
    assert records[-1].completion_tokens == usage["completion_tokens"] == 72
    assert records[-1].prompt_tokens == usage["prompt_tokens"]


# -- log probabilities


def test_a_completions_tokens_join_to_its_text_at_their_offsets(client: httpx.Client) -> None:
    plain, scored = complete(client), complete(client, logprobs=3)
    (choice,) = scored["choices"]
    assert choice["text"] == plain["choices"][0]["text"]
    scores = choice["logprobs"]
    assert len(scores["tokens"]) == scored["usage"]["completion_tokens"]
    for token, logprob, top, offset in zip(
        *(scores[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")), strict=True
    ):
        assert logprob <= 0
        assert top[token] == logprob
        assert 3 <= len(top) <= 4
        assert logprob <= max(top.values())
        if not token.startswith("bytes:"):
            assert choice["text"].startswith(token, offset)


def test_streamed_scores_join_to_the_whole_ones(client: httpx.Client) -> None:
    whole = complete(client, n=2, logprobs=1, max_tokens=60)
    chunks = streamed(client, n=2, logprobs=1, max_tokens=60)
    for choice in whole["choices"]:
        pieces = [piece["logprobs"] for piece in of_choice(chunks, choice["index"]) if piece["logprobs"]]
        for name, expected in choice["logprobs"].items():
            assert list(itertools.chain(*(piece[name] for piece in pieces))) == expected


def test_a_chats_scores_have_bytes_that_join_to_its_content(client: httpx.Client) -> None:
    answer = chat(client, logprobs=True, top_logprobs=20)
    (choice,) = answer["choices"]
    content = choice["logprobs"]["content"]
    joined = b"".join(bytes(score["bytes"]) for score in content)
    assert joined.decode(errors="replace") == choice["message"]["content"]
    for score in content:
        assert len(score["top_logprobs"]) == 20
        assert [other["logprob"] for other in score["top_logprobs"]] == sorted(
            (other["logprob"] for other in score["top_logprobs"]), reverse=True
        )
    assert chat(client, logprobs=True)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert chat(client)["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("width", [1, 3])
def test_text_tokens_and_scores_are_cut_at_the_same_stop_streamed_or_not(client: httpx.Client, width: int) -> None:
    free = complete(client, max_tokens=120, logprobs=0)["choices"][0]
    text = free["text"]
    start = next(at for at in range(20, len(text)) if "\ufffd" not in text[at : at + width])
    stop = text[start : start + width]
    cut = text.index(stop)
    kept = [
        token for token, at in zip(free["logprobs"]["tokens"], free["logprobs"]["text_offset"], strict=True) if at < cut
    ]
    choice = complete(client, max_tokens=120, logprobs=0, stop=stop)["choices"][0]
    assert (choice["text"], choice["logprobs"]["tokens"]) == (text[:cut], kept)
    chunks = streamed(client, max_tokens=120, logprobs=0, stop=stop)
    tokens = [token for piece in of_choice(chunks, 0) for token in (piece["logprobs"] or {"tokens": []})["tokens"]]
    assert (text_of(chunks, 0), tokens) == (text[:cut], kept)


def test_a_stop_token_is_no_scored_token(client: httpx.Client) -> None:
    answer = complete(client, logprobs=0, max_tokens=200, stop_token_ids=list(range(259, 320)))
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == answer["usage"]["completion_tokens"] - 1


# -- echo


def test_echo_puts_the_prompt_before_each_choice(client: httpx.Client) -> None:
    plain, echoed = complete(client, n=2), complete(client, n=2, echo=True)
    for without, with_prompt in zip(plain["choices"], echoed["choices"], strict=True):
        assert with_prompt["text"] == PROMPT + without["text"]
    assert echoed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    chunks = streamed(client, n=2, echo=True)
    assert [text_of(chunks, number) for number in (0, 1)] == [choice["text"] for choice in echoed["choices"]]


def test_a_stop_string_of_the_prompt_does_not_end_what_echoes_it(client: httpx.Client) -> None:
    answer = complete(client, echo=True, stop=["upon"], max_tokens=8)
    assert answer["choices"][0]["text"].startswith(PROMPT)
    assert answer["usage"]["completion_tokens"] == 8


def token_ids(client: httpx.Client, prompt: str | list[str]) -> list[int]:
    """The ids of a text, or of tokens by their names in an answer."""
    if isinstance(prompt, str):
        return list(client.post("/tokenize", json={"model": "tiny", "prompt": prompt}).json()["tokens"])
    found = []
    for token in prompt:
        byte = int(token.removeprefix("bytes:\\x"), 16) if token.startswith("bytes:") else None
        found += [3 + byte] if byte is not None else token_ids(client, token)
    return found


def test_a_prompts_scores_are_what_they_were_when_its_tokens_were_output_cached_or_not(client: httpx.Client) -> None:
    """Behaviour 8: the prefix cache would hand out a prompt without computing what its tokens' scores come from."""
    prompt = token_ids(client, "warm " + PROMPT)
    made = complete(client, prompt=prompt, max_tokens=40, logprobs=2, temperature=0)["choices"][0]["logprobs"]
    whole = prompt + token_ids(client, made["tokens"])
    complete(client, prompt=whole)  # now it is cached
    answer = complete(client, prompt=whole, max_tokens=1, logprobs=2, temperature=0, echo=True)
    scored = answer["choices"][0]["logprobs"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert (scored["token_logprobs"][0], scored["top_logprobs"][0]) == (None, None)
    assert scored["tokens"][len(prompt) : -1] == made["tokens"]
    assert scored["token_logprobs"][len(prompt) : -1] == pytest.approx(made["token_logprobs"], abs=1e-3)
    assert [max(top, key=top.__getitem__) for top in scored["top_logprobs"][len(prompt) : -1]] == made["tokens"]


def test_a_long_prompt_is_echoed_with_its_scores_piece_by_piece(client: httpx.Client) -> None:
    prompt = [5 + number % 200 for number in range(600)]
    chunks = streamed(client, prompt=prompt, max_tokens=2, echo=True, logprobs=0)
    sizes = [len(piece["logprobs"]["tokens"]) for piece in of_choice(chunks, 0) if piece["logprobs"]]
    assert sum(sizes) == 602
    assert max(sizes) <= 256


# -- penalties and bias


def test_a_frequency_penalty_makes_what_was_said_less_likely_and_a_bias_forces_a_token(client: httpx.Client) -> None:
    def tokens(**fields: Any) -> list[str]:
        return complete(client, temperature=0, max_tokens=100, logprobs=0, **fields)["choices"][0]["logprobs"]["tokens"]

    free, penalised = tokens(), tokens(frequency_penalty=2)
    assert len(set(penalised)) > len(set(free))
    assert len(set(tokens(presence_penalty=2))) > len(set(free))
    assert len(set(tokens(repetition_penalty=10))) > len(set(free))
    assert set(tokens(logit_bias={str(3 + ord("x")): 100})) == {"x"}


def test_min_p_of_one_leaves_only_the_likeliest(client: httpx.Client) -> None:
    assert complete(client, min_p=1)["choices"][0]["text"] == complete(client, temperature=0)["choices"][0]["text"]


# -- tokens


def test_a_text_and_a_chat_are_tokenized_as_they_would_be_prompts(client: httpx.Client) -> None:
    found = client.post("/tokenize", json={"model": "tiny", "prompt": PROMPT, "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == complete(client)["usage"]["prompt_tokens"]
    assert found["max_model_len"] == 2048
    assert "".join(found["token_strs"]) == PROMPT
    assert client.post("/detokenize", json={"model": "tiny", "tokens": found["tokens"]}).json() == {"prompt": PROMPT}
    messages = [{"role": "user", "content": "hello"}]
    rendered = client.post("/tokenize", json={"model": "tiny", "messages": messages}).json()
    assert rendered["count"] == chat(client)["usage"]["prompt_tokens"]
    assert "token_strs" not in rendered


@pytest.mark.parametrize(
    ("path", "fields", "code", "param"),
    [
        ("/tokenize", {"model": "gpt-9", "prompt": "x"}, "model_not_found", "model"),
        ("/tokenize", {"model": "tiny"}, "invalid_parameter", "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": ""}, "invalid_parameter", "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "x", "messages": []}, "invalid_parameter", "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "x", "n": 2}, "unsupported_parameter", "n"),
        ("/tokenize", {"model": "tiny", "prompt": "x" * 100_000}, "context_length_exceeded", None),
        ("/detokenize", {"model": "tiny", "tokens": [320]}, "invalid_parameter", "tokens"),
        ("/detokenize", {"model": "tiny", "tokens": [5] * 2049}, "context_length_exceeded", "tokens"),
        ("/detokenize", {"model": "tiny", "tokens": "x"}, "invalid_parameter", "tokens"),
    ],
)
def test_what_cannot_be_tokenized_is_refused_by_name(
    client: httpx.Client, path: str, fields: dict[str, Any], code: str, param: str | None
) -> None:
    answer = client.post(path, json=fields)
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param)


def test_the_official_client_reads_choices_and_scores(worker: WorkerProcess) -> None:
    with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        answer = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=4,
            n=2,
            logprobs=True,
            top_logprobs=2,
        )
        assert [choice.index for choice in answer.choices] == [0, 1]
        scores = answer.choices[1].logprobs
        assert scores is not None
        assert scores.content is not None
        assert len(scores.content[0].top_logprobs) == 2
        legacy = client.completions.create(model="tiny", prompt="hello", max_tokens=4, logprobs=1, echo=True)
        listed = legacy.choices[0].logprobs
        assert listed is not None
        assert listed.token_logprobs is not None
        assert listed.token_logprobs[0] is None
