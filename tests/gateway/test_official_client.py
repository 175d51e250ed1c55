"""The official openai client is the outside judge: what it reads, raises and retries."""

import openai
import pytest
from fake_replica import dies, pieces, refuses, replies, token_event
from gateway_harness import NO_REDIS, Harness, gateway
from gateway_world import World

pytestmark = pytest.mark.anyio
MESSAGES = [{"role": "user", "content": "hello"}]


def client_of(g: Harness, key: str | None = None) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{g.url}/v1", api_key=key or g.world.acme_key.text, max_retries=0, http_client=g.client
    )


async def test_it_chats_whole_and_streamed(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        client = client_of(g)
        whole = await client.chat.completions.create(model="chat", messages=MESSAGES)
        assert whole.choices[0].message.content == "xxx"
        assert whole.usage.total_tokens == 10
        stream = await client.chat.completions.create(model="chat", messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "xxx"
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert chunks[0].to_dict()["obfuscation"] == "noise"


async def test_it_lists_and_retrieves_models(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        client = client_of(g)
        assert [model.id async for model in client.models.list() if "@" not in model.id] == ["chat", "shared"]
        assert (await client.models.retrieve("chat")).owned_by == "acme"


async def test_it_raises_its_own_exception_for_each_kind_of_refusal(world: World, home, clean_redis) -> None:
    async with gateway(world, home, clean_redis) as g:
        client = client_of(g)

        async def refused(kind: type[openai.APIStatusError], model: str = "chat", key: str | None = None) -> str:
            caller = client if key is None else client_of(g, key)
            with pytest.raises(kind) as error:
                await caller.chat.completions.create(model=model, messages=MESSAGES)
            assert error.value.request_id.startswith("req_")
            return error.value.code

        assert await refused(openai.AuthenticationError, key="sk-nothing") == "invalid_api_key"
        assert await refused(openai.NotFoundError, model="secret") == "model_not_found"
        g.replicas[0].script = refuses(400, "unsupported_parameter")
        assert await refused(openai.BadRequestError) == "unsupported_parameter"
        world.limit("acme", requests_per_minute=0)
        await g.change_catalog()
        assert await refused(openai.RateLimitError) == "requests_per_minute"
        world.suspend("acme")
        await g.change_catalog()
        assert await refused(openai.PermissionDeniedError) == "tenant_suspended"


async def test_a_stream_that_breaks_raises_instead_of_ending_quietly(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS) as g:
        g.replicas[0].script = pieces(token_event(1), then="die")
        stream = await client_of(g).chat.completions.create(model="chat", messages=MESSAGES, stream=True)
        assert (await anext(stream)).choices[0].delta.content == "x"
        with pytest.raises(openai.APIError, match="replica"):
            await anext(stream)


async def test_it_does_not_notice_a_replica_lost_before_the_first_token(world: World, home) -> None:
    async with gateway(world, home, NO_REDIS, replicas=2) as g:
        broken = iter([dies])

        async def first_dies(call) -> None:
            await next(broken, replies())(call)

        for replica in g.replicas:
            replica.script = first_dies
        stream = await client_of(g).chat.completions.create(model="chat", messages=MESSAGES, stream=True)
        assert "".join([chunk.choices[0].delta.content async for chunk in stream]) == "xxx"
