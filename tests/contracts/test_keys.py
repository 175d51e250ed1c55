import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts import keys

alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
lookups = st.text(alphabet, min_size=8, max_size=8)
secrets = st.text(alphabet, min_size=32, max_size=32)
envs = st.sampled_from(keys.ENVIRONMENTS)
PEPPER = b"p" * 32


@given(envs, lookups, secrets)
def test_an_assembled_key_parses_to_its_parts(env: str, lookup: str, secret: str) -> None:
    text = keys.assemble(env, lookup, secret)
    assert keys.parse(text) == keys.ParsedKey(env=env, lookup=lookup, text=text)


@given(envs, lookups, secrets, st.data())
def test_one_changed_character_is_refused_offline(env: str, lookup: str, secret: str, data: st.DataObject) -> None:
    text = keys.assemble(env, lookup, secret)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(alphabet + "_- é\n").filter(lambda character: character != text[place]))
    assert keys.parse(text[:place] + other + text[place + 1 :]) is None


@given(st.text())
def test_junk_is_no_key(text: str) -> None:
    assert keys.parse(text) is None


@given(envs, lookups, secrets)
def test_more_text_around_a_key_is_no_key(env: str, lookup: str, secret: str) -> None:
    text = keys.assemble(env, lookup, secret)
    for other in (text + "\n", " " + text, text + "0", text[1:], text.upper()):
        assert keys.parse(other) is None


@pytest.mark.parametrize(
    ("env", "lookup", "secret"),
    [
        ("prod", "a" * 8, "a" * 32),
        ("live", "a" * 7, "a" * 32),
        ("live", "a" * 8, "a" * 33),
        ("live", "a_aaaaaa", "a" * 32),
    ],
)
def test_parts_that_no_key_has_are_refused(env: str, lookup: str, secret: str) -> None:
    with pytest.raises(ValueError, match="form"):
        keys.assemble(env, lookup, secret)


@given(envs, lookups, secrets, secrets)
def test_only_the_whole_key_under_its_pepper_matches(env: str, lookup: str, secret: str, other: str) -> None:
    text = keys.assemble(env, lookup, secret)
    stored = keys.digest(text, PEPPER)
    peppers = {"p": PEPPER, "q": b"q" * 32}
    shown = keys.digests(text, peppers)
    assert keys.matches(shown, "p", stored)
    assert not keys.matches(shown, "q", stored)
    assert not keys.matches(shown, "gone", stored)
    others = keys.digests(keys.assemble(env, lookup, other), peppers)
    assert keys.matches(others, "p", stored) == (other == secret)


def test_minted_keys_are_keys_and_differ() -> None:
    minted = [keys.mint("live") for _ in range(200)]
    assert all(keys.parse(key.text) == key for key in minted)
    assert len({key.lookup for key in minted}) == 200


@given(envs, lookups, st.binary(min_size=32, max_size=32), st.text(), st.text())
def test_a_derived_key_depends_on_secret_and_context(env: str, lookup: str, secret: bytes, one: str, two: str) -> None:
    first = keys.derive(env, lookup, secret, one)
    assert first == keys.derive(env, lookup, secret, one)
    assert keys.parse(first.text) == first
    assert (first == keys.derive(env, lookup, secret, two)) == (one == two)


def test_the_first_pepper_is_the_current_one() -> None:
    peppers = keys.parse_peppers(f"b:{'11' * 32}, a:{'22' * 32}")
    assert list(peppers) == ["b", "a"]


@pytest.mark.parametrize("text", ["", "a", "a:", ":" + "11" * 32, "a:11", "a:zz" + "11" * 31])
def test_weak_or_malformed_peppers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        keys.parse_peppers(text)
