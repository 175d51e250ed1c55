"""Rollouts on the pages of others: freezes, lists, the first page, the journal; how often the database is asked."""

import re

from console_world import FRAME_QUERIES, PLATFORM_FRAME_QUERIES, num_queries, page
from rollout_pages_world import called, here
from rollout_world import begun, change, make_world, stored, walk

from controlplane.rollouts import services
from tenants.actor import system_actor


def test_a_freeze_wants_a_reason_and_is_told_on_every_page_of_rollouts(world, root, alice, bob, bobs):
    rollout = walk(begun(world, bobs), "awaiting_approval")
    asked = page(root, "/platform/rollouts/freeze")
    assert "acme/chat at 50 %" in asked
    assert root.post("/platform/rollouts/freeze", {"reason": " "}).status_code == 422
    assert root.post("/platform/rollouts/freeze", {"reason": "the network is sick"}).status_code == 302
    deployment = f"/t/acme/deployments/{world.deployment.id}"
    for client, url in (
        (alice, "/t/acme/rollouts"), (alice, here(rollout)), (alice, "/t/acme/approvals"),
        (alice, here(rollout, "/approve")), (bob, f"{deployment}?tab=rollouts"), (bob, f"{deployment}/rollouts/new"),
        (root, "/platform/rollouts"), (root, "/platform/approvals"), (root, f"/platform/rollouts/{rollout.id}"),
    ):  # fmt: skip
        text = page(client, url)
        assert "All rollouts are frozen" in text
        assert "root@pagoda.example" in text
        assert "the network is sick" in text
    assert 'name="waivers.evals"' not in page(alice, "/t/acme/approvals")
    assert "frozen already" in root.post("/platform/rollouts/freeze", {"reason": "again"}, follow=True).content.decode()
    assert bob.post(here(rollout, "/roll-back"), follow=True).status_code == 200
    assert stored(rollout).state == "rolling_back"
    assert root.post("/platform/rollouts/unfreeze").status_code == 302
    assert "frozen by" not in page(root, "/platform/rollouts")
    assert root.post("/platform/rollouts/unfreeze").status_code == 409


def test_lists_are_narrowed_by_their_address(world, personas, root, alice, bobs, monkeypatch):
    rollout = walk(begun(world, bobs), "bake")
    theirs = begun(make_world(personas.evil, name="spy").install(monkeypatch))
    text = page(root, "/platform/rollouts")
    assert rollout.id in text
    assert theirs.id in text
    only = page(root, "/platform/rollouts?tenant=evil&state=live")
    assert rollout.id not in only
    assert theirs.id in only
    assert rollout.id in page(alice, "/t/acme/rollouts?state=bake")
    assert "No rollout fits" in page(alice, "/t/acme/rollouts?state=promoted")
    assert rollout.id in page(alice, "/t/acme/rollouts?state=nonsense&tenant=evil")
    assert theirs.id not in page(alice, "/t/acme/rollouts")
    assert "<html" not in page(alice, "/t/acme/rollouts", hx_request="true")


def test_root_reads_and_takes_back_any_tenants_rollout(world, root, bobs):
    rollout = walk(begun(world, bobs), "bake")
    theirs = f"/platform/rollouts/{rollout.id}"
    text = page(root, theirs)
    assert f'action="{theirs}"' in text
    assert "/t/acme/" not in text.split('id="main"')[1]
    assert root.post(theirs, {"command": "pause", "revision": rollout.revision}).status_code == 302
    assert root.post(f"{theirs}/roll-back", {"reason": "sick"}).status_code == 302
    assert "Rolled back by root@pagoda.example: sick" in page(root, theirs)


def test_what_is_under_way_is_on_the_first_page_and_its_arms_on_the_deployments(world, alice, bobs):
    assert "Rollouts under way" not in page(alice, "/t/acme/")
    rollout = walk(begun(world, bobs), "bake")
    for text in (page(alice, "/t/acme/"), page(alice, "/t/acme/", hx_request="true")):
        assert "Rollouts under way" in text
        assert here(rollout) in text
        assert ">Baking</span>" in text
    overview = page(alice, f"/t/acme/deployments/{world.deployment.id}")
    assert re.search(r'aria-label="Traffic: Stable tiny v\d+ 95 %, Candidate tiny v\d+ 5 %"', overview)


def test_the_journal_of_the_tenant_tells_rollouts_in_words(world, alice, bobs, personas):
    rollout = walk(begun(world, bobs), "bake")
    services.roll_back(actor=bobs, rollout_id=rollout.id)
    text = page(alice, "/t/acme/audit?about=rollouts")
    for words in ("drafted the rollout", "started the rollout", "moved on the rollout", "rolled back the rollout"):
        assert words in text


def test_pages_ask_the_database_as_often_for_much_as_for_little(world, alice, root, personas, monkeypatch):
    system = system_actor("tests", personas.acme)
    rollout = walk(begun(world, system), "awaiting_approval")
    chat = f"/t/acme/deployments/{world.deployment.id}"
    pages = {
        (alice, "/t/acme/rollouts"): 3,
        (alice, here(rollout)): 8,
        (alice, here(rollout, "/approve")): 4,
        (alice, here(rollout, "/roll-back")): 3,
        (alice, "/t/acme/approvals"): 4,
        (alice, f"{chat}?tab=rollouts"): 6,
        (alice, f"{chat}/rollouts/new"): 8,
        (root, "/platform/rollouts"): 5,
        (root, "/platform/approvals"): 4,
        (root, "/platform/rollouts/freeze"): 2,
    }
    for has_more in (False, True):
        if has_more:
            other = make_world(personas.acme, name="other").install(monkeypatch)
            walk(begun(other, system), "awaiting_approval")
            called(world, {"stable": 2, "candidate": 2})
        for (client, url), queries in pages.items():
            frame = FRAME_QUERIES if client is alice else PLATFORM_FRAME_QUERIES
            assert num_queries(client, url) == frame + queries, url
    assert max(pages.values()) <= 8


def test_a_rollout_of_a_deleted_deployment_is_still_told(world, alice, bobs):
    rollout = begun(world, bobs)
    services.roll_back(actor=bobs, rollout_id=rollout.id)
    walk(rollout, "rolled_back")
    change(rollout, reason="the end")
    from controlplane.deployments.services import delete_deployment

    delete_deployment(actor=bobs, deployment_id=world.deployment.id, confirm="chat")
    text = page(alice, here(rollout))
    assert "the end" in text
    assert "the deployment is deleted" in text
