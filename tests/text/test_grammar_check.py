"""Grammars that are tried before a request is admitted: each once, in a process that nothing depends on."""

import asyncio

import pytest

from dataplane.text import grammar, grammar_check
from dataplane.text.grammar import GrammarRefused
from dataplane.text.grammar_check import GrammarCheck

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


GOOD = grammar.of_regex("[a-z]+")
BAD = grammar.of_regex("(a")


async def refusal(check: GrammarCheck, rules: str, tenant_id: str = "acme") -> str:
    with pytest.raises(GrammarRefused) as caught:
        await check.check(rules, tenant_id=tenant_id)
    return str(caught.value)


async def test_a_tenants_grammar_is_tried_once_whatever_the_verdict() -> None:
    check = GrammarCheck()
    await asyncio.gather(check.check(GOOD, tenant_id="acme"), check.check(GOOD, tenant_id="acme"))
    assert await refusal(check, BAD) == await refusal(check, BAD) == "unclosed group"
    assert check.trials == 2
    await check.check(GOOD, tenant_id="evil")
    assert check.trials == 3


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (grammar.of_regex("((((a{1,100}){1,100}){1,100}){1,100})"), "too complex"),
        pytest.param(grammar.of_regex("(?:" + "a?" * 20_000 + ")"), "too long to compile", marks=pytest.mark.slow),
        pytest.param(grammar.of_regex("(" * 3000 + "a" + ")" * 3000), "nested parentheses", marks=pytest.mark.slow),
        pytest.param(
            grammar.of_schema({"type": "object", "properties": {f"p{number}": {} for number in range(2000)}}),
            "too complex",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            grammar.of_schema({"allOf": [{"anyOf": [{"required": [f"{a}{b}"]} for b in range(4)]} for a in range(20)]}),
            "too large",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["states", "time", "depth", "properties", "combinations"],
)
async def test_a_grammar_that_is_made_to_take_everything_takes_little(rules: str, said: str) -> None:
    check = GrammarCheck()
    assert said in await refusal(check, rules, "evil")
    await check.check(GOOD, tenant_id="acme")


async def test_a_trial_whose_process_dies_refuses_its_grammar_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    check = GrammarCheck()
    with monkeypatch.context() as broken:
        broken.setattr(grammar_check.sys, "executable", "/bin/false")
        assert "too much" in await refusal(check, GOOD, "evil")
    await check.check(GOOD, tenant_id="acme")


async def test_who_leaves_while_its_grammar_is_tried_takes_the_trial_along() -> None:
    check = GrammarCheck()
    leaving = asyncio.create_task(check.check(grammar.of_regex("(?:" + "a?" * 20_000 + ")"), tenant_id="evil"))
    while not check.trials:
        await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await check.check(GOOD, tenant_id="acme")
    await check.check(GOOD, tenant_id="evil")
