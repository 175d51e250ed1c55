import string

import msgspec
import pytest
from gateway_world import PEPPER, PEPPERS, World, key_entry
from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts import keys
from dataplane.contracts.catalog import KeySecret
from dataplane.contracts.errors import ApiError
from dataplane.gateway import auth

NOW_MS = 1_800_000_000_000


def code_of(token: str, world: World) -> str:
    try:
        auth.authenticate(token, world.catalog(), PEPPERS, NOW_MS)
    except ApiError as refusal:
        return refusal.code.code
    return "ok"


def test_a_key_proves_its_tenant() -> None:
    world = World()
    caller = auth.authenticate(world.acme_key.text, world.catalog(), PEPPERS, NOW_MS)
    assert (caller.tenant.name, caller.key.tenant_id) == ("acme", "ten_acme")


@given(st.integers(0, 60), st.sampled_from(string.ascii_letters + string.digits + "_-. \n\0é"))
def test_a_key_with_any_character_changed_is_refused(position: int, character: str) -> None:
    world = World()
    text = world.acme_key.text
    changed = text[: position % len(text)] + character + text[position % len(text) + 1 :]
    assert code_of(changed, world) == ("ok" if changed == text else "invalid_api_key")


@given(st.text(max_size=80))
def test_anything_that_is_no_key_is_refused_without_looking_it_up(text: str) -> None:
    world = World()
    world.keys = Untouchable()
    assert code_of(text, world) == "invalid_api_key"


class Untouchable(dict):
    """Fails the test when a key is looked up in it."""

    def get(self, *_: object) -> None:
        raise AssertionError("looked up")


def test_a_right_lookup_with_another_secret_is_answered_as_an_unknown_key_is() -> None:
    world = World()
    forged = keys.assemble("live", world.acme_key.lookup, "A" * 32)
    messages = []
    for token in (forged, keys.mint("live").text):
        with pytest.raises(ApiError) as refusal:
            auth.authenticate(token, world.catalog(), PEPPERS, NOW_MS)
        messages.append((refusal.value.code, refusal.value.message))
    assert messages[0] == messages[1]


def test_each_thing_that_can_be_wrong_with_a_right_key_has_its_code() -> None:
    world = World()
    entry, lookup, text = world.keys[world.acme_key.lookup], world.acme_key.lookup, world.acme_key.text
    cases = {
        "scope_missing": {"scopes": ("read",)},
        "key_revoked": {"expires_at_ms": NOW_MS},
        "ok": {"expires_at_ms": NOW_MS + 1},
        "invalid_api_key": {"secrets": (KeySecret("unknown-pepper", keys.digest(text, PEPPER)),)},
    }
    for code, change in cases.items():
        world.keys[lookup] = msgspec.structs.replace(entry, **change)
        assert code_of(text, world) == code
    world.keys[lookup] = entry
    world.suspend("acme")
    assert code_of(text, world) == "tenant_suspended"
    del world.tenants["acme"]
    assert code_of(text, world) == "invalid_api_key"


def test_while_a_key_is_rolled_both_secrets_work_until_the_old_one_ends() -> None:
    world = World()
    old, lookup = world.acme_key.text, world.acme_key.lookup
    new = keys.assemble("live", lookup, "B" * 32)
    both = (KeySecret("p1", keys.digest(new, PEPPER)), KeySecret("p1", keys.digest(old, PEPPER), NOW_MS + 1000))
    world.keys[lookup] = key_entry(world.acme_key, "ten_acme", secrets=both)
    catalog = world.catalog()
    callers = [auth.authenticate(text, catalog, PEPPERS, NOW_MS) for text in (old, new)]
    assert callers[0].key == callers[1].key
    ended = [auth.withdrawn(caller, catalog, NOW_MS + 1000) for caller in callers]
    assert ended[0] is not None
    assert ended[1] is None


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer  ", "Basic abc", "pgd_live_x"])
def test_a_header_that_is_no_bearer_token_says_how_to_send_one(header: str | None) -> None:
    with pytest.raises(ApiError, match="Authorization: Bearer") as refusal:
        auth.bearer(header)
    assert refusal.value.code.status == 401


@pytest.mark.parametrize("header", ["Bearer abc", "bearer abc", "BEARER  abc "])
def test_the_scheme_is_read_in_any_case(header: str) -> None:
    assert auth.bearer(header) == "abc"
