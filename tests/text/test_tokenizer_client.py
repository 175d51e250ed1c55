import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from dataplane.contracts.errors import ApiError, Code
from dataplane.text.client import TokenizerClient
from dataplane.text.tokenizer import ModelTokenizer
from tests.text import tokenizer_files

SMALL_BYTES = 400_000_000
"""Enough for Python and a tiny tokenizer, not for a text that grows 64-fold."""
CHAT = json.dumps([{"role": "user", "content": "Hi"}]).encode()


def run(folder: Path, body: Callable[[TokenizerClient], Awaitable[None]], *, timeout_s: float = 20.0) -> None:
    """Run ``body`` with a started client, and see that nothing of it is left."""

    async def session() -> None:
        client = TokenizerClient(memory_bytes=SMALL_BYTES, call_timeout_s=timeout_s)
        await client.start(folder)
        try:
            await body(client)
        finally:
            await client.stop()

    before = set(psutil.Process().children())
    asyncio.run(session())
    assert set(psutil.Process().children()) == before


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_files.byte_level(tmp_path_factory.mktemp("model"))


@pytest.fixture
def bomb_dir(tmp_path: Path) -> Path:
    """A tokenizer within the schema that makes 64 letters of every "a": a long text takes more memory than there is."""
    folder = tokenizer_files.byte_level(tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 64}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


async def fails(call: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await call
    return caught.value


def test_the_child_answers_as_the_tokenizer_does(model_dir: Path) -> None:
    tokenizer = ModelTokenizer(model_dir)
    prompt_ids = tokenizer.encode_chat(tokenizer.render_chat(CHAT))

    async def body(client: TokenizerClient) -> None:
        assert await client.encode_chat(CHAT) == prompt_ids
        token_ids = await client.encode_text("Grüße 🙂")
        assert token_ids == tokenizer.encode_text("Grüße 🙂")
        assert client.detokenizer.decode(token_ids) == "Grüße 🙂"
        assert [client.detokenizer.spell(token_id) for token_id in (1, 10**6)] == [b"<|im_start|>", b""]

    run(model_dir, body)


@pytest.mark.parametrize("dies", [False, True], ids=["alive", "died meanwhile"])
def test_a_child_that_was_prepared_takes_the_model_unless_it_died(model_dir: Path, *, dies: bool) -> None:
    async def session() -> None:
        client = TokenizerClient(memory_bytes=SMALL_BYTES)
        await client.prepare()
        prepared = psutil.Process(client.pid)
        if dies:
            prepared.kill()
            while client.pid is not None:
                await asyncio.sleep(0.01)
        await client.start(model_dir)
        assert (client.pid == prepared.pid) is not dies
        assert await client.encode_text("a")
        await client.stop()
        unused = TokenizerClient(memory_bytes=SMALL_BYTES)
        await unused.prepare()
        await unused.stop()

    asyncio.run(session())
    assert not psutil.Process().children()


def test_a_call_that_fails_leaves_the_child_alone(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        child = client.pid
        error = await fails(client.encode_chat(b'[{"role": "evil", "content": ""}]'))
        assert error.code is Code.INVALID_PARAMETER
        assert (await fails(client.encode_text(""))).code is Code.INVALID_PARAMETER
        assert (await fails(client.encode_text("\ud800"))).code is Code.INVALID_PARAMETER
        assert await client.encode_text("ok")
        assert client.pid == child

    run(model_dir, body)


def test_a_text_that_ends_the_child_fails_alone(bomb_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        poison = asyncio.create_task(fails(client.encode_text("a" * 400_000)))
        neighbour = asyncio.create_task(client.encode_text("ok"))
        other = asyncio.create_task(client.encode_chat(CHAT))
        assert (await poison).code is Code.TOKENIZER_FAILED
        assert await neighbour
        assert await other
        assert client.restarts == 1

    run(bomb_dir, body)


def test_text_is_decoded_while_there_is_no_child(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        token_ids = await client.encode_text("Ein 🙂.")
        stream = client.detokenizer.stream()
        text = stream.push(token_ids[:6])
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        while client.restarts == 0:
            await asyncio.sleep(0.01)
        assert text + stream.push(token_ids[6:], last=True) == "Ein 🙂."
        assert client.detokenizer.decode(await client.encode_text("ok")) == "ok"

    run(model_dir, body)


def test_a_hung_child_is_replaced_and_what_waited_is_answered(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        poison = asyncio.create_task(fails(client.encode_text("stuck")))
        waiting = asyncio.create_task(client.encode_text("weiter"))
        assert (await poison).code is Code.TOKENIZER_FAILED
        assert client.detokenizer.decode(await waiting) == "weiter"

    run(model_dir, body, timeout_s=2.0)


def test_a_caller_that_goes_away_disturbs_nobody(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        calls = [asyncio.create_task(client.encode_text("z" * 1000)) for _ in range(20)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[::2])
        assert all(len(answer) == 1000 for answer in answers[1::2] if isinstance(answer, list))
        assert sum(isinstance(answer, list) for answer in answers) == 10

    run(model_dir, body)


def test_a_template_without_end_fails_alone(tmp_path: Path) -> None:
    folder = tokenizer_files.byte_level(tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )

    async def body(client: TokenizerClient) -> None:
        child = client.pid
        slow = asyncio.create_task(fails(client.encode_chat(CHAT)))
        neighbour = asyncio.create_task(client.encode_text("ok"))
        assert (await slow).code is Code.TEMPLATE_FAILED
        assert await neighbour
        assert client.pid == child

    run(folder, body)


def test_tenants_take_turns_at_the_tokenizer(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        done: list[str] = []

        async def encode(tenant_id: str) -> None:
            await client.encode_text("abc " * 1000, tenant_id=tenant_id)
            done.append(tenant_id)

        calls = [asyncio.create_task(encode("flood")) for _ in range(20)]
        await asyncio.sleep(0)
        calls += [asyncio.create_task(encode("quiet")) for _ in range(2)]
        await asyncio.gather(*calls)
        # One of the flood is in work when the quiet one comes, one more has its turn between its two.
        assert done[:5].count("quiet") == 2
        assert done.count("flood") == 20

    run(model_dir, body)


def test_a_text_that_cannot_fit_is_refused_unread(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        many = json.dumps([{"role": "user", "content": "Hi"}] * 9).encode()
        for call in (client.encode_text("a" * 10_000, max_tokens=8), client.encode_chat(many, max_tokens=8)):
            error = await fails(call)
            assert error.code is Code.CONTEXT_LENGTH_EXCEEDED
            assert "8 tokens" in error.message

    run(model_dir, body)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", '{"padding": {"strategy": {"Fixed": 400000000}}}'),
        ("tokenizer.json", ""),
        ("chat_template.jinja", "{{ 'a' * 10**9 }}"),
        ("chat_template.jinja", "{% for"),
        ("tokenizer_config.json", '{"a": 1, "a": 2}'),
    ],
)
def test_a_folder_that_cannot_be_loaded_fails_the_start_with_a_sentence(
    tmp_path: Path, name: str, content: str
) -> None:
    folder = tokenizer_files.byte_level(tmp_path)
    (folder / name).write_text(content)

    async def body() -> None:
        client = TokenizerClient()
        if name == "chat_template.jinja" and "*" in content:
            await client.start(folder)  # it fails when it is run
            error = await fails(client.encode_chat(CHAT))
            assert error.code is Code.TEMPLATE_FAILED
            await client.stop()
        else:
            error = await fails(client.start(folder))
            assert error.code in (Code.TOKENIZER_FAILED, Code.TEMPLATE_FAILED)
        assert error.message
        with pytest.raises(ApiError, match="not serving"):
            await client.encode_text("a")

    asyncio.run(body())


def test_a_vocabulary_that_its_decoder_makes_too_long_fails_the_start_with_its_limits(tmp_path: Path) -> None:
    content = tokenizer_files.llama_2_json()
    content["decoder"]["decoders"][0]["content"] = "x" * 64
    content["model"]["vocab"]["▁" * 100] = len(content["model"]["vocab"])
    folder = tokenizer_files.llama_2(tmp_path)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    error = asyncio.run(fails(TokenizerClient().start(folder)))
    assert error.code is Code.TOKENIZER_FAILED
    assert "4096 bytes each" in error.message


def test_a_missing_folder_fails_the_start(tmp_path: Path) -> None:
    error = asyncio.run(fails(TokenizerClient().start(tmp_path / "nothing")))
    assert "tokenizer.json" in error.message


def test_calls_that_wait_when_the_client_stops_are_told_so(model_dir: Path) -> None:
    async def session() -> None:
        client = TokenizerClient(memory_bytes=SMALL_BYTES)
        await client.start(model_dir)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        calls = [asyncio.create_task(fails(client.encode_text("a"))) for _ in range(3)]
        await asyncio.sleep(0)
        await client.stop()
        assert {error.code for error in await asyncio.gather(*calls)} == {Code.SHUTTING_DOWN}

    asyncio.run(session())


def test_the_child_has_no_environment_no_descriptors_and_a_filter(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        process = psutil.Process(client.pid)
        secrets = {"PAGODA_SECRET_KEY", "DATABASE_URL", "HOME", "PATH"} & process.environ().keys()
        assert not secrets
        assert process.num_fds() <= 5
        status = Path(f"/proc/{client.pid}/status").read_text()
        assert "Seccomp:\t2" in status
        assert "NoNewPrivs:\t1" in status

    run(model_dir, body)
