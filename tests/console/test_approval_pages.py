"""Approvals in the console: of what waits, by whom, and once."""

from console_world import page
from rollout_pages_world import WAIVERS, here, hidden
from rollout_world import begun, path, quick_plan, stored, walk

from tenants.actor import member_actor


def test_an_approval_is_asked_for_with_verdicts_digest_author_and_what_was_not_run(world, alice, bob, bobs):
    assert "Nothing waits" in page(alice, "/t/acme/approvals")
    rollout = walk(begun(world, bobs), "awaiting_approval")
    text = page(alice, "/t/acme/approvals")
    for words in (
        world.candidate.digest,
        "bob@acme.example",
        "All 1 gates that were run pass.",
        "takes 100 %",
        "0.12 %",
    ):
        assert words in text
    assert ">1<span class" in text.split('">Approvals<')[1].split("</a>")[0]
    assert "Approvals" not in page(bob, "/t/acme/").split("</nav>")[0]
    assert bob.get("/t/acme/approvals").status_code == 403
    assert "An owner of the tenant approves" in page(bob, here(rollout))
    form = hidden(text)
    refused = alice.post(here(rollout, "/approve"), form | {"waivers.evals": "none yet"})
    assert refused.status_code == 422
    assert "Say why it may be done without." in refused.content.decode()
    assert 'value="none yet"' in refused.content.decode()
    done = alice.post(here(rollout, "/approve"), form | WAIVERS, follow=True).content.decode()
    assert "Approved. tiny" in done
    assert stored(rollout).state == "promoting"
    assert stored(rollout).waivers == {"evals": "no suite of ours covers it", "shadow": "checked by hand"}


def test_two_who_approve_at_once_do_it_once(world, alice, root, bobs):
    rollout = walk(begun(world, bobs, quick_plan(5, 50, approval_at=5)), "awaiting_approval")
    form = hidden(page(alice, here(rollout, "/approve"))) | WAIVERS
    assert alice.post(here(rollout, "/approve"), form).status_code == 302
    answer = root.post(f"/platform/rollouts/{rollout.id}/approve", form)
    assert answer.status_code == 409
    assert "This is how it stands." in answer.content.decode()
    assert path(rollout)[-1] == ("ramp", 1)
    rollout = walk(rollout, "bake")
    stale = root.post(f"/platform/rollouts/{rollout.id}/approve", form)
    assert (stale.status_code, stored(rollout).state) == (409, "bake")


def test_an_approval_of_anything_else_than_what_waits_is_told_how_it_stands(world, alice, bobs):
    rollout = walk(begun(world, bobs), "awaiting_approval")
    form = hidden(page(alice, here(rollout, "/approve"))) | WAIVERS
    for changed in ({"step": "0"}, {"digest": "0" * 64}, {"revision": "1"}, {"step": "x"}):
        answer = alice.post(here(rollout, "/approve"), form | changed)
        assert answer.status_code == 409
        assert ">Waits for approval</span>" in answer.content.decode()
    assert stored(rollout).state == "awaiting_approval"


def test_the_author_reads_why_he_may_not_approve_and_an_admin_may(world, alice, root, personas):
    rollout = walk(begun(world, member_actor(personas.alice, "acme")), "awaiting_approval")
    for url in ("/t/acme/approvals", here(rollout, "/approve"), here(rollout)):
        assert "You made this rollout; somebody else approves it." in page(alice, url)
    form = {"revision": rollout.revision, "step": rollout.step, "digest": rollout.candidate_digest} | WAIVERS
    assert alice.post(here(rollout, "/approve"), form).status_code == 403
    inbox = page(root, "/platform/approvals")
    assert "acme" in inbox
    assert root.post(f"/platform/rollouts/{rollout.id}/approve", hidden(inbox) | WAIVERS).status_code == 302
    assert stored(rollout).state == "promoting"
