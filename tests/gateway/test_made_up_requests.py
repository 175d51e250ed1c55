"""Whatever callers send: it reaches a replica as it is, or is refused in OpenAI's envelope with a catalogued code."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from fake_replica import Call, replies
from gateway_harness import Harness, events, gateway
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataplane.contracts.errors import ApiError, Code, ErrorEnvelope, envelope
from dataplane.contracts.headers import PUBLIC_REQUEST_ID, USE_ARM
from dataplane.worker import parameters, requests

pytestmark = pytest.mark.anyio

CODES = {code.code: code for code in Code}
OURS = (Code.REPLICA_LOST, Code.QUEUE_TIMEOUT, Code.REQUEST_FAILED, Code.LOGITS_NOT_FINITE, Code.INTERNAL)
"""What no body may bring about, whatever it says."""
tried = settings(
    max_examples=150, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=8,
)
wild = st.floats() | st.text(max_size=8)
"""What is no JSON of one reading: NaN, lone surrogates, NUL."""
models = st.sampled_from(
    ["chat", "chat@1", "chat@stable", "chat@candidate", "chat@7", "acme/chat", "chat/", "@", ""]
) | text  # fmt: skip
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "assistant"]), "content": text}),
    min_size=1, max_size=3,
)  # fmt: skip
options = {
    "stream": st.just(True), "max_tokens": st.integers(1, 64), "temperature": st.floats(0, 2),
    "top_p": st.floats(0.1, 1), "seed": st.integers(0, 2**31), "model": st.sampled_from(["chat", "chat@1"]),
}  # fmt: skip
chats = st.fixed_dictionaries({"messages": messages}, optional=options)
completions = st.fixed_dictionaries({"prompt": text.filter(bool)}, optional=options)
names = st.sampled_from(sorted(parameters.CHAT | parameters.COMPLETION)) | text
changes = st.one_of(
    st.just({}), st.fixed_dictionaries({"model": models}), st.dictionaries(names, values, min_size=1, max_size=2),
    st.dictionaries(names, wild, min_size=1, max_size=1),
)  # fmt: skip


def encoded(value: object) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def sent(path: str, sound: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[tuple[str, bytes]]:
    """Requests to ``path``: as they should be, but for what was changed; anything; and what is hardly JSON."""
    objects = st.builds(lambda body, change: encoded({"model": "chat"} | body | change), sound, changes)
    broken = st.builds(lambda body, at: body[:at] + body[at + 1 :], objects, st.integers(0, 100))
    return st.tuples(st.just(path), st.one_of(objects, objects, objects, values.map(encoded), broken))


calls = sent("/v1/chat/completions", chats) | sent("/v1/completions", completions)
arms = st.none() | st.sampled_from(["stable", "candidate", "previous", "", "stable, candidate", "\xff"])
printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


@pytest.fixture
async def g(world: Any, home: Any, clean_redis: str) -> AsyncIterator[Harness]:
    async with gateway(world, home, clean_redis) as harness:
        harness.replicas[0].script = reads_as_a_worker
        yield harness


async def reads_as_a_worker(call: Call) -> None:
    """Refuse what a worker refuses; answer the rest."""
    try:
        (requests.parse_chat if call.path == "/v1/chat/completions" else requests.parse_completion)(call.body)
    except ApiError as error:
        await call.whole(error.code.status, envelope(error, None))
    else:
        await replies()(call)


def judged(response: httpx.Response) -> None:
    """Check that an answer is whole: a success, or a refusal with a code of the catalogue and its status."""
    assert response.headers[PUBLIC_REQUEST_ID].startswith("req_")
    if response.status_code == 200:
        streamed = response.headers["content-type"].startswith("text/event-stream")
        assert events(response.text)[-1] == "[DONE]" if streamed else response.json()
        return
    refusal = msgspec.json.decode(response.content, type=ErrorEnvelope).error
    code = CODES[refusal.code]
    assert (response.status_code, refusal.type) == (code.status, code.type)
    assert code not in OURS, refusal
    assert refusal.message


@tried
@given(call=calls, arm=arms)
async def test_every_body_is_answered_or_refused_by_name(g: Harness, call: tuple[str, bytes], arm: str | None) -> None:
    path, body = call
    judged(await g.post(body, path=path, headers=None if arm is None else {USE_ARM: arm.encode("latin-1")}))


@tried
@given(call=calls)
async def test_no_body_reaches_what_another_tenant_owns(g: Harness, call: tuple[str, bytes]) -> None:
    path, body = call
    response = await g.post(body, key=g.world.evil_key.text, path=path)
    judged(response)
    assert response.status_code in (400, 404), "the strategy names no deployment that evil may call"
    assert not [secret for secret in ("ten_acme", "dep_chat", "ver_1") if secret in response.text]
    assert g.replicas[0].calls == []


@tried
@given(
    name=models,
    bearer=st.sampled_from(["acme", "evil"]) | st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
)
async def test_every_question_about_models_is_answered_or_refused(g: Harness, name: str, bearer: str) -> None:
    keys = {"acme": g.world.acme_key.text, "evil": g.world.evil_key.text}
    authorization = f"Bearer {keys.get(bearer, bearer)}".encode("utf-8", "surrogatepass")
    path = f"/v1/models/{quote(name)}" if name else "/v1/models"
    judged(await g.client.get(path, headers={b"authorization": authorization}))
