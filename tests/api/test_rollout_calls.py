"""A program drafts and moves a rollout over the API; alice, who owns acme, or root approves it."""

from typing import Any

import msgspec
import pytest
from django.test import Client
from domain import deploy
from rollout_world import WAIVERS, World, make_world, stored, walk

from controlplane.rollouts.models import Rollout
from tenants.actor import member_actor
from tenants.roles import Scope
from tenants.services import issue_key

PLAN = {
    "steps": [{"weight": 50, "hold_s": 0, "min_samples": 1}], "ramp_s": 0, "bake_100_s": 0,
    "judge": {"accept_unproven": True},
}  # fmt: skip


@pytest.fixture
def world(personas, monkeypatch) -> World:
    return make_world(personas.acme).install(monkeypatch)


@pytest.fixture
def program(personas) -> Client:
    """A program with a key that bob made."""
    issued = issue_key(actor=member_actor(personas.bob, "acme"), name="ci", scopes=[Scope.READ, Scope.DEPLOYMENTS])
    return Client(headers={"authorization": f"Bearer {issued.text}"})


def signed_in(person: Any) -> Client:
    client = Client()
    client.force_login(person)
    return client


def call(client: Client, method: str, path: str, body: object = None, status: int = 200) -> dict[str, Any]:
    raw = b"" if body is None else msgspec.json.encode(body)
    answer = client.generic(method, f"/api/v1{path}", raw, content_type="application/json")
    assert answer.status_code == status, answer.content
    return answer.json() if answer.content else {}


def drafted(program: Client, world: World, **more: object) -> dict[str, Any]:
    body = {"deployment_id": world.deployment.id, "candidate_version_id": world.candidate.id, "plan": PLAN}
    return call(program, "POST", "/rollouts", body | more, 201)


def waiting(program: Client, world: World) -> dict[str, Any]:
    """Return a rollout that waits for an approval."""
    made = drafted(program, world)
    call(program, "POST", f"/rollouts/{made['id']}/start", {"revision": made["revision"]})
    walk(_row(made), "awaiting_approval")
    return call(program, "GET", f"/rollouts/{made['id']}")


def approval(seen: dict[str, Any], **changed: object) -> dict[str, Any]:
    digest = seen["candidate"]["digest"]
    return {"revision": seen["revision"], "digest": digest, "step": seen["step"], "waivers": WAIVERS} | changed


def _row(told: dict[str, Any]) -> Any:
    return stored(Rollout(pk=told["id"]))


def test_a_rollout_from_its_draft_to_its_promotion(program, personas, world):
    made = drafted(program, world)
    assert (made["state"], made["step"], made["weight"], made["tenant"]) == ("draft", -1, 0, "acme")
    assert (made["stable"]["id"], made["candidate"]["id"]) == (world.stable.id, world.candidate.id)
    assert (made["plan"]["keep_previous_s"], made["plan"]["judge"]["accept_unproven"]) == (3600, True)
    assert made["commands"] == ["start", "abort", "roll_back", "supersede"]
    call(program, "POST", f"/rollouts/{made['id']}/start", {"revision": made["revision"]})
    walk(_row(made), "awaiting_approval")
    seen = call(program, "GET", f"/rollouts/{made['id']}")
    assert (seen["state"], seen["weight"], "approve" in seen["commands"]) == ("awaiting_approval", 50, False)
    alice = signed_in(personas.alice)
    assert "approve" in call(alice, "GET", f"/rollouts/{made['id']}")["commands"]
    call(alice, "POST", f"/rollouts/{made['id']}/approve", approval(seen))
    walk(_row(made), "promoted")
    told = call(program, "GET", f"/rollouts/{made['id']}")
    assert (told["state"], told["weight"], told["ended_at"] is None) == ("promoted", 100, False)
    assert [event["sequence"] for event in told["events"]] == list(range(1, len(told["events"]) + 1))
    assert {"old", "new", "cause", "actor", "evidence"} <= told["events"][0].keys()
    listed = call(program, "GET", f"/rollouts?deployment_id={world.deployment.id}")["data"]
    assert [(row["id"], "events" in row) for row in listed] == [(made["id"], False)]
    assert call(program, "GET", f"/rollouts?deployment_id={deploy(personas.acme, 'idle').id}")["data"] == []


def test_an_approval_is_of_what_was_seen_by_somebody_who_may(program, personas, world):
    seen = waiting(program, world)
    path, alice = f"/rollouts/{seen['id']}/approve", signed_in(personas.alice)
    assert call(program, "POST", path, approval(seen), 403)["error"]["code"] == "forbidden"
    assert call(signed_in(personas.bob), "POST", path, approval(seen), 403)["error"]["code"] == "forbidden"
    assert call(signed_in(personas.mallory), "POST", path, approval(seen), 404)["error"]["code"] == "not_found"
    for stale in ({"revision": seen["revision"] - 1}, {"digest": "0" * 64}, {"step": 7}):
        call(alice, "POST", path, approval(seen, **stale), 409)
    lacking = call(alice, "POST", path, approval(seen, waivers={"evals": "read by hand"}), 422)["error"]
    assert "shadow" in lacking["message"]
    unknown = call(alice, "POST", path, approval(seen, waivers=WAIVERS | {"latency": "fine"}), 422)["error"]
    assert unknown["fields"].keys() == {"waivers.latency"}
    assert call(signed_in(personas.root), "POST", f"/platform{path}", approval(seen))["weight"] == 100


def test_a_rollout_is_paused_resumed_and_taken_back_whatever_was_seen(program, world):
    seen = waiting(program, world)
    path = f"/rollouts/{seen['id']}"
    paused = call(program, "POST", f"{path}/pause", {"revision": seen["revision"], "reason": "lunch"})
    assert (paused["state"], paused["weight"]) == ("paused", 50)
    assert "lunch" in paused["events"][-1]["cause"]
    call(program, "POST", f"{path}/pause", {"revision": seen["revision"]}, 409)
    resumed = call(program, "POST", f"{path}/resume", {"revision": paused["revision"]})
    assert resumed["weight"] == 50
    taken = call(program, "POST", f"{path}/roll-back", {"reason": "wrong totals"})
    assert (taken["applied"], taken["rollout"]["weight"]) == (True, 0)
    walk(_row(seen), "rolled_back")
    assert not call(program, "POST", f"{path}/roll-back")["applied"]


def test_a_draft_is_given_up_and_another_superseded(program, world):
    made = drafted(program, world)
    assert call(program, "POST", "/rollouts", {
        "deployment_id": world.deployment.id, "candidate_version_id": world.candidate.id,
    }, 409)["error"]["code"] == "conflict"  # fmt: skip
    newer = drafted(program, world, supersede=True)
    assert call(program, "GET", f"/rollouts/{made['id']}")["state"] == "superseded"
    given_up = call(program, "POST", f"/rollouts/{newer['id']}/abort", {"revision": newer["revision"]})
    assert (given_up["state"], given_up["commands"]) == ("aborted", [])


def test_a_plan_that_proves_nothing_is_refused_by_its_fields(program, world):
    bad = PLAN | {"steps": [{"weight": 0, "hold_s": 0, "min_samples": 1}], "ramp_s": -1}
    body = {"deployment_id": world.deployment.id, "candidate_version_id": world.candidate.id, "plan": bad}
    assert {"steps", "ramp_s"} <= call(program, "POST", "/rollouts", body, 422)["error"]["fields"].keys()


def test_the_platform_sees_every_rollout_and_freezes_them(program, personas, world):
    made, root = drafted(program, world), signed_in(personas.root)
    (listed,) = call(root, "GET", "/platform/rollouts")["data"]
    assert (listed["id"], listed["tenant"]) == (made["id"], "acme")
    assert call(root, "GET", f"/platform/rollouts/{made['id']}")["events"]
    assert not call(root, "GET", "/platform/rollouts/freeze")["frozen"]
    frozen = call(root, "PUT", "/platform/rollouts/freeze", {"reason": "The yearly sale."})
    assert (frozen["frozen"], frozen["reason"], frozen["by"]) == (True, "The yearly sale.", "root@pagoda.example")
    refusal = call(program, "POST", f"/rollouts/{made['id']}/start", {"revision": made["revision"]}, 409)
    assert "frozen" in refusal["error"]["message"]
    call(root, "DELETE", "/platform/rollouts/freeze", status=204)
    call(program, "POST", f"/rollouts/{made['id']}/start", {"revision": made["revision"]})
    assert call(root, "POST", f"/platform/rollouts/{made['id']}/roll-back")["applied"]
