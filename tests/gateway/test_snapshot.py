import msgspec
import pytest
from gateway_world import CONTEXT_TOKENS, PEPPERS, World, deployment

from dataplane.contracts.catalog import Arm, EngineSettings, Share
from dataplane.contracts.errors import ApiError
from dataplane.gateway import auth
from dataplane.gateway.auth import Caller
from dataplane.gateway.snapshot import Snapshot


def seen_by(world: World, who: str) -> tuple[Snapshot, Caller]:
    catalog = world.catalog()
    token = world.acme_key.text if who == "acme" else world.evil_key.text
    return Snapshot(catalog), auth.authenticate(token, catalog, PEPPERS, 0)


def refusal(snapshot: Snapshot, caller: Caller, name: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        snapshot.called(caller, name)
    return caught.value


def test_an_owner_says_the_name_and_a_guest_says_whose_it_is() -> None:
    world = World()
    snapshot, alice = seen_by(world, "acme")
    assert set(snapshot.models(alice)) == {"chat", "shared"}
    snapshot, mallory = seen_by(world, "evil")
    assert set(snapshot.models(mallory)) == {"secret", "acme/shared"}
    assert snapshot.called(mallory, "acme/shared")[0].id == "dep_shared"


def test_a_model_of_another_tenant_is_answered_as_one_that_does_not_exist() -> None:
    snapshot, alice = seen_by(World(), "acme")
    errors = {name: refusal(snapshot, alice, name) for name in ("secret", "evil/secret", "nothing")}
    assert {error.code.code for error in errors.values()} == {"model_not_found"}
    assert {error.message.replace(name, "NAME") for name, error in errors.items()} == {
        "There is no model 'NAME' for this API key. It may call: chat, shared."
    }


def test_a_key_for_some_deployments_sees_only_those() -> None:
    world = World()
    lookup = world.acme_key.lookup
    world.keys[lookup] = msgspec.structs.replace(world.keys[lookup], deployment_ids=("dep_shared", "dep_secret"))
    snapshot, alice = seen_by(world, "acme")
    assert [card.id for card in snapshot.cards(alice)] == ["shared", "shared@1", "shared@stable"]
    for name in ("chat", "chat@1", "chat@stable"):
        assert "It may call: shared." in refusal(snapshot, alice, name).message


def test_a_paused_deployment_is_named_as_paused_to_those_who_may_call_it_alone() -> None:
    world = World()
    world.deployments["chat"] = msgspec.structs.replace(world.deployments["chat"], active=False)
    snapshot, alice = seen_by(world, "acme")
    assert refusal(snapshot, alice, "chat").code.code == "model_paused"
    assert refusal(snapshot, alice, "chat@1").code.code == "model_paused"
    assert [card.id for card in snapshot.cards(alice)] == ["shared", "shared@1", "shared@stable"]
    _, mallory = seen_by(world, "evil")
    assert refusal(snapshot, mallory, "acme/chat").code.code == "model_not_found"


def test_the_list_of_names_in_an_error_is_bounded() -> None:
    world = World()
    for n in range(100):
        world.deployments[f"m{n}"] = deployment(f"dep_{n}", "ten_acme", f"m{n}", ("ten_acme",))
    snapshot, alice = seen_by(world, "acme")
    message = refusal(snapshot, alice, "x" * 250).message
    assert "and 82 more" in message
    assert len(message) < 400


def test_one_version_is_called_by_its_number_or_an_alias_of_it() -> None:
    world = World()
    arms = (Arm("ver_1", 90), Arm("ver_2", 10, "candidate"))
    world.versions["ver_2"] = msgspec.structs.replace(world.versions["ver_2"], aliases=("next", "1"))
    world.deployments["shared"] = deployment("dep_shared", "ten_acme", "shared", ("ten_acme", "ten_evil"), arms=arms)
    snapshot, mallory = seen_by(world, "evil")
    found = {name: snapshot.called(mallory, f"acme/shared{name}")[1] for name in ("", "@1", "@2", "@stable", "@next")}
    assert found == {"": None, "@1": arms[0], "@2": arms[1], "@stable": arms[0], "@next": arms[1]}
    assert [card.id for card in snapshot.cards(mallory)] == [
        "acme/shared", "acme/shared@1", "acme/shared@2", "acme/shared@stable", "acme/shared@next", "secret", "secret@1",
        "secret@stable",
    ]  # fmt: skip
    assert snapshot.card(mallory, "acme/shared@2").created == 1_700_000_002


@pytest.mark.parametrize("version", ["", "2", "01", "1 ", "next", "1@1", "stable/x"])
def test_a_version_that_takes_no_traffic_is_not_found_and_the_answer_names_those_that_do(version: str) -> None:
    snapshot, alice = seen_by(World(), "acme")
    error = refusal(snapshot, alice, f"chat@{version}")
    assert error.code.code == "model_not_found"
    assert error.message.endswith("It may call: chat, chat@1, chat@stable.")


def test_the_context_is_what_model_deployment_and_cap_all_allow() -> None:
    world = World()
    snapshot, _ = seen_by(world, "acme")
    chat = world.deployments["chat"]
    assert snapshot.context_tokens(chat, "ver_1", "ten_acme") == CONTEXT_TOKENS
    shorter = msgspec.structs.replace(chat, engine=EngineSettings(max_model_len=512))
    assert snapshot.context_tokens(shorter, "ver_1", "ten_acme") == 512
    capped = msgspec.structs.replace(shorter, grants={"ten_acme": Share(cap_tokens=100)})
    assert snapshot.context_tokens(capped, "ver_1", "ten_acme") == 100


def test_a_model_object_has_what_openai_clients_read() -> None:
    snapshot, alice = seen_by(World(), "acme")
    card = msgspec.to_builtins(snapshot.card(alice, "chat"))
    assert card == {"id": "chat", "object": "model", "created": 1_700_000_001, "owned_by": "acme"}
