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
        pieces = [await client.decode("s", [token_id]) for token_id in token_ids]
        assert "".join(pieces) + await client.decode("s", [], last=True) == "Grüße 🙂"
        assert "\ufffd" not in "".join(pieces)

    run(model_dir, body)


def test_each_token_has_the_text_it_makes_certain_and_the_rest_comes_last(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        umlaut, smile = await client.encode_text("ü"), await client.encode_text("🙂")
        assert await client.decode_each("s", [*umlaut, *smile[:2]]) == ["", "ü", "", ""]
        assert await client.decode_each("s", smile[2:3], last=True) == ["", "\ufffd"]

    run(model_dir, body)


def test_tokens_are_spelled_with_their_bytes_by_any_child(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        umlaut = await client.encode_text("ü")
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)  # a child that dies before it answers is asked again
        asking = asyncio.create_task(client.spell([*umlaut, 1, 10**6]))
        await asyncio.sleep(0)
        os.kill(client.pid, signal.SIGKILL)
        spelled = await asking
        assert [spelled[token_id] for token_id in (*umlaut, 1, 10**6)] == [b"\xc3", b"\xbc", b"<|im_start|>", b""]
        assert await client.spell(umlaut) is spelled

    run(model_dir, body)


def test_streams_do_not_mix(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        smile, umlaut = await client.encode_text("🙂"), await client.encode_text("ü")
        assert await client.decode("a", smile[:2]) == ""
        assert await client.decode("b", umlaut[:1]) == ""
        client.close_stream("a")
        assert await client.decode("b", umlaut[1:]) == "ü"
        assert await client.decode("a", umlaut) == "ü"  # the first two bytes of the smile are forgotten

    run(model_dir, body)


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
        smile = await client.encode_text("🙂")
        assert await client.decode("open", smile[:3]) == ""
        poison = asyncio.create_task(fails(client.encode_text("a" * 400_000)))
        neighbour = asyncio.create_task(client.encode_text("ok"))
        other = asyncio.create_task(client.encode_chat(CHAT))
        assert (await poison).code is Code.TOKENIZER_FAILED
        assert await neighbour
        assert await other
        assert client.restarts == 1
        assert await client.decode("open", smile[3:], last=True) == "🙂"

    run(bomb_dir, body)


def test_open_streams_survive_a_killed_child(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        token_ids = await client.encode_text("Ein 🙂 und noch ein 🙂.")
        text = ""
        for place, token_id in enumerate(token_ids):
            if place in (3, 6, 7):
                assert client.pid is not None
                os.kill(client.pid, signal.SIGKILL)
            text += await client.decode("s", [token_id], last=place == len(token_ids) - 1)
        assert text == "Ein 🙂 und noch ein 🙂."
        assert client.restarts >= 1

    run(model_dir, body)


def test_a_hung_child_is_replaced_and_what_waited_is_answered(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        token_ids = await client.encode_text("weiter")
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        poison = asyncio.create_task(fails(client.encode_text("stuck")))
        decoded = asyncio.create_task(client.decode("s", token_ids, last=True))
        assert (await poison).code is Code.TOKENIZER_FAILED
        assert await decoded == "weiter"

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


def test_streams_are_decoded_while_a_long_text_is_encoded(model_dir: Path) -> None:
    async def body(client: TokenizerClient) -> None:
        token_ids = await client.encode_text("ok")
        long = asyncio.create_task(client.encode_text("abc " * 200_000))
        await asyncio.sleep(0)
        assert await client.decode("s", token_ids, last=True) == "ok"
        assert not long.done()
        assert len(await long) > 0

    run(model_dir, body)


def test_streams_are_decoded_while_a_template_takes_its_time(tmp_path: Path) -> None:
    folder = tokenizer_files.byte_level(tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )

    async def body(client: TokenizerClient) -> None:
        token_ids = await client.encode_text("ok")
        slow = asyncio.create_task(fails(client.encode_chat(CHAT)))
        await asyncio.sleep(0)
        for _ in range(20):
            assert await client.decode("s", token_ids) == "ok"
        assert not slow.done()
        assert (await slow).code is Code.TEMPLATE_FAILED

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
