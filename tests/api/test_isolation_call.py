import pytest
from django.test import Client
from domain import PLATFORM, deploy
from isolation_world import Node, apart, load, probe, replica, sound

from controlplane.deployments.services import set_grant
from dataplane.contracts.catalog import Share
from dataplane.contracts.probes import ProbeKind
from tenants.actor import member_actor
from tenants.roles import Scope
from tenants.services import issue_key


@pytest.fixture
def chat(personas, monkeypatch):
    deployment = deploy(personas.acme)
    set_grant(actor=PLATFORM, deployment_id=deployment.id, grantee_slug="evil", share=Share())
    busy = load(personas.acme, 10, peak_owned_blocks=12, preemptions={"growth": 1})
    Node().install(monkeypatch).tell(
        replica("rep_1", deployment, busy, load(personas.evil, 3)),
        probes=(*sound(deployment), probe(deployment, ProbeKind.BATCH, *apart(), given_up=41)),
    )
    return deployment


def asked(user, slug: str, deployment, query: str = ""):
    text = issue_key(actor=member_actor(user, slug), name="reader", scopes=[Scope.READ]).text
    client = Client(headers={"authorization": f"Bearer {text}"})
    return client.get(f"/api/v1/deployments/{deployment.id}/isolation{query}")


def test_a_key_reads_its_tenants_isolation_with_the_standing_of_each_promise(chat, personas):
    told = asked(personas.alice, "acme", chat).json()
    assert told["judgement"] == {"memory": "kept", "turns": "kept", "cache": "kept"}
    assert (told["now"]["used_tokens"], told["whole"]["peak_tokens"]) == (160, 192)
    assert told["whole"]["preemptions"] == {"growth": 1}
    assert len(told["slots"]) == 24
    assert [each["kind"] for each in told["findings"]] == ["across", "batch", "within"]
    assert told["findings"][0]["separation"]["high"] <= 0.55
    assert "given_up" not in str(told)


def test_a_guest_reads_itself_and_nobody_else(chat, personas):
    told = asked(personas.mallory, "evil", chat, "?range=1h").json()
    assert told["whole"]["used_tokens"] == 48
    assert len(told["slots"]) == 12


def test_a_range_that_does_not_exist_is_refused_and_a_stranger_finds_nothing(chat, personas):
    assert asked(personas.alice, "acme", chat, "?range=1y").status_code == 422
    assert asked(personas.mallory, "evil", deploy(personas.acme, name="private")).status_code == 404
