"""A rollout under way and what people do with it: alice owns, bob develops, carol looks, root runs the platform."""

import re

from console_world import page
from rollout_pages_world import SLOW, called, here, said, verbs
from rollout_world import approve, begun, journal, quick_plan, step, stored, walk

from controlplane.rollouts import services
from controlplane.rollouts.gates import Outcome, Verdict
from controlplane.rollouts.plan import Gate
from dataplane.contracts.replica import ReplicaState
from tenants.actor import member_actor
from tenants.selectors import list_audit


def test_a_rollout_is_shown_with_stages_verdicts_arms_replicas_and_journal(world, bob, bobs):
    world.report(ReplicaState.READY)
    rollout = walk(begun(world, bobs, quick_plan(5, 25, 50)), "ramp")
    while (stored(rollout).state, stored(rollout).step) != ("bake", 1):
        step(rollout)
    called(world, {"stable": 30, "candidate": 3})
    text = page(bob, here(rollout))
    stages = text.split('<ol class="steps">')[1].split("</ol>")[0]
    assert re.findall(r'<li class="(\w*)"', stages) == ["done", "done", "running", "", "", ""]
    assert re.findall(r"<strong>([^<]+)</strong>", stages) == ["Get ready", "5 %", "25 %", "50 %", "Approval", "100 %"]
    assert 'aria-current="step"' in stages.split("25 %")[0].rsplit("<li", 1)[1]
    assert "All 1 gates that were run pass. 1,034 of its requests against 90,000." in stages
    assert 'aria-label="Traffic: Stable tiny' in text
    assert "3 of 1" in text
    gates = text.split("<h2>Gates</h2>")[1].split("<h2>Journal")[0]
    for words in ("0.12 %", "0.10 %", "+0.5 pp", "1,034", "could have seen +0.61 pp", "Not run"):
        assert words in gates
    assert text.count(">Ready</span>") >= 2
    assert "Because the test says so." in text
    assert f"target={rollout.id}" in text
    assert journal(rollout)[-1].cause in text.split("<h2>Journal")[1]


def test_the_digest_on_the_page_is_that_of_the_audit_row(world, alice, bobs, personas):
    rollout = walk(begun(world, bobs), "awaiting_approval")
    (shown,) = re.findall(r"Evidence</dt><dd><code>(\w{64})</code>", page(alice, here(rollout)))
    sealed = [
        event.after["evidence_sha256"]
        for event in list_audit(actor=member_actor(personas.alice, "acme"), target=rollout.id)
        if "evidence_sha256" in event.after
    ]
    assert shown == sealed[0]


def test_both_arms_are_told_over_the_same_times_and_no_data_is_no_number(world, bob, bobs):
    rollout = walk(begun(world, bobs), "bake")
    called(world, {"stable": 4})
    text = page(bob, f"{here(rollout)}?range=1h")
    table = text.split('id="series"')[1].split("</table>")[0]
    assert table.count("<tr data-x=") in (30, 31)
    assert table.count("no request") == table.count("<tr data-x=") - 1
    (row,) = [each for each in table.split("<tr data-x=") if "data-v=" in each]
    numbers = re.findall(r'<td class="num"(?: data-v="([^"]*)")?>', row)
    assert numbers[:4] == ["4", "", "0", ""]
    assert 'aria-current="true">1 hour' in text
    assert "range=1h" in text.split("data-poll hx-get=")[1].split('"')[1]
    assert 'aria-current="true">Whole rollout' in page(bob, f"{here(rollout)}?range=1y")


def test_too_little_data_is_a_state_of_its_own(world, bob, bobs):
    lengthy = Verdict(
        gate=Gate.LENGTH, outcome=Outcome.INCONCLUSIVE, words="median answer: 12 of 40 requests are too few",
        samples_candidate=12, needed=40,
    )  # fmt: skip
    world.judgement = said(Outcome.INCONCLUSIVE, lengthy, words="Cannot tell yet: 12 of 40 requests are too few.")
    rollout = walk(begun(world, bobs), "inconclusive")
    text = page(bob, here(rollout))
    assert ">Not enough data</span>" in text
    assert "12 of 40" in text
    paused = page(bob, here(walk(rollout, "paused")))
    assert ">Paused</span>" in paused
    assert "Inconclusive twice at 5 %" in paused
    assert "Resume" in paused


def test_a_bad_candidate_ends_in_red_with_the_reason_in_words(world, bob, bobs):
    world.judgement = said(Outcome.FAIL, SLOW, words="Failed: p95 TTFT 412 ms against 180 ms.")
    text = page(bob, here(walk(begun(world, bobs), "rolled_back")))
    stages = text.split('<ol class="steps">')[1].split("</ol>")[0]
    assert re.findall(r'<li class="(\w*)"', stages) == ["done", "failed", "", "", ""]
    assert "p95 TTFT 412 ms against 180 ms" in stages
    assert ">Failed</span>" in text
    assert "data-poll" not in text
    assert "roll-back" not in text


def test_a_live_part_comes_without_its_frame_and_says_the_state_aloud(world, bob, bobs):
    rollout = walk(begun(world, bobs), "bake")
    text = page(bob, here(rollout), hx_request="true")
    assert "<html" not in text
    assert '<div id="standing" hx-swap-oob="innerHTML">Baking, candidate at 5 %.</div>' in text


# --- what people do


def test_a_button_carries_what_was_seen_and_a_stale_tab_is_told_and_shown_how_it_stands(world, bob, bobs, personas):
    rollout = begun(world, bobs)
    seen = re.findall(r'name="revision" value="(\d+)"', page(bob, here(rollout)))[0]
    rollout = walk(rollout, "bake")
    answer = bob.post(here(rollout), {"command": "pause", "revision": seen})
    text = answer.content.decode()
    assert answer.status_code == 409
    assert "Nothing was done." in text
    assert "moved on since you read it" in text
    assert ">Baking</span>" in text
    assert f'name="revision" value="{rollout.revision}"' in text
    assert bob.post(here(rollout), {"command": "pause", "revision": str(rollout.revision)}).status_code == 302
    assert bob.post(here(rollout), {"command": "pause", "revision": str(rollout.revision)}).status_code == 409
    assert bob.post(here(rollout), {"command": "pause"}).status_code == 409
    paused = stored(rollout)
    assert (
        "goes on"
        in bob.post(here(rollout), {"command": "resume", "revision": paused.revision}, follow=True).content.decode()
    )
    assert verbs(personas, rollout)[-2:] == ["rollout.pause", "rollout.resume"]


def test_a_draft_is_started_and_given_up_by_its_buttons(world, bob, bobs):
    draft = services.create_rollout(
        actor=bobs, deployment_id=world.deployment.id, candidate_version_id=world.candidate.id, plan=quick_plan()
    )
    assert "Roll back" in page(bob, here(draft))
    assert bob.post(here(draft), {"command": "start", "revision": draft.revision}).status_code == 302
    assert bob.post(here(draft), {"command": "start", "revision": draft.revision}).status_code == 409
    assert bob.post(here(draft), {"command": "abort", "revision": stored(draft).revision}).status_code == 302
    assert stored(draft).state == "aborted"
    assert bob.post(here(draft), {"command": "fly", "revision": "1"}).status_code == 422


def test_a_rollback_says_what_it_does_and_needs_no_revision(world, bob, bobs):
    rollout = walk(begun(world, bobs), "bake")
    assert f'href="{here(rollout, "/roll-back")}">Roll back' in page(bob, here(rollout))
    text = page(bob, here(rollout, "/roll-back"))
    assert "All traffic goes back to tiny" in text
    assert "Now 5 % go to tiny" in text
    assert 'name="revision"' not in text
    walk(rollout, "awaiting_approval")
    answer = bob.post(here(rollout, "/roll-back"), {"reason": "it lies"}, follow=True).content.decode()
    assert "Rolled back by bob@acme.example: it lies" in answer
    assert ">Rolling back</span>" in answer
    assert "nothing to take back" in bob.post(here(rollout, "/roll-back"), follow=True).content.decode()
    assert bob.post(here(rollout, "/roll-back"), {"reason": "x" * 400}).status_code == 422


def test_after_a_promotion_the_rollback_names_the_version_that_is_woken(world, alice, bob, bobs, personas):
    rollout = walk(begun(world, bobs), "awaiting_approval")
    approve(member_actor(personas.alice, "acme"), rollout)
    rollout = walk(rollout, "promoted")
    assert "is woken from memory" in page(alice, here(rollout, "/roll-back"))
    text = page(bob, here(rollout))
    assert "Roll back" in text
    assert re.findall(r'<li class="(\w*)"', text.split('<ol class="steps">')[1].split("</ol>")[0]) == ["done"] * 5
    assert "without evals: no suite of ours covers it" in text


def test_who_may_only_look_is_offered_nothing_and_a_stranger_finds_nothing(world, signed_in, bobs, root):
    rollout = walk(begun(world, bobs), "awaiting_approval")
    text = page(signed_in("carol"), here(rollout))
    assert "Roll back" not in text
    assert 'name="command"' not in text
    assert "The audit row" not in text
    for act in ("", "/approve", "/roll-back"):
        assert signed_in("mallory").get(here(rollout, act).replace("/acme/", "/evil/")).status_code == 404
        assert root.get(here(rollout, act)).status_code == 404
    assert signed_in("carol").post(here(rollout), {"command": "pause"}).status_code == 403
    assert signed_in("carol").post(here(rollout, "/roll-back")).status_code == 403
    assert rollout.id not in page(signed_in("mallory"), "/t/evil/rollouts")
