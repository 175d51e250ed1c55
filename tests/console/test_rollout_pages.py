"""Rollouts in the console: alice owns, bob develops and drafts, carol looks, root runs the platform."""

import re
from types import SimpleNamespace

import pytest
from console_world import FRAME_QUERIES, PLATFORM_FRAME_QUERIES, late, num_queries, page
from django.test import Client
from domain import PLATFORM, deploy, make_version
from rollout_world import (
    World,
    approve,
    begun,
    change,
    journal,
    make_world,
    path,
    quick_plan,
    step,
    stored,
    walk,
)  # fmt: skip

from controlplane.metering import services as metering
from controlplane.rollouts import services
from controlplane.rollouts.gates import Judgement, Outcome, Summary, Verdict
from controlplane.rollouts.plan import DEFAULT_PLAN, Gate
from dataplane.contracts.replica import ReplicaState
from tenants.actor import member_actor, platform_actor, system_actor
from tenants.selectors import list_audit

NOT_RUN = (
    Verdict(gate=Gate.EVALS, outcome=Outcome.NOT_RUN, words="No eval suite was run: this needs the approver's waiver"),
    Verdict(gate=Gate.SHADOW, outcome=Outcome.NOT_RUN, words="No shadow traffic was run"),
)
GOOD = Verdict(
    gate=Gate.ERRORS, outcome=Outcome.PASS, words="failed requests 0.10% against 0.12% (-0.02 pp), limit +0.50 pp",
    effect_words="could have seen +0.61 pp", stable_value=0.0012, candidate_value=0.001, limit=0.005,
    samples_stable=90_000, samples_candidate=1_034, needed=912,
)  # fmt: skip
SLOW = Verdict(
    gate=Gate.TTFT_P95, outcome=Outcome.FAIL, words="p95 TTFT 412 ms against 180 ms (×2.29), limit ×1.15",
    effect_words="could have seen ×1.12", stable_value=180.0, candidate_value=412.0, limit=1.15,
    samples_stable=90_000, samples_candidate=1_034, needed=500,
)  # fmt: skip
WAIVERS = {"waivers.evals": "no suite of ours covers it", "waivers.shadow": "checked by hand"}
ROWS = {
    "of": "little", "rows": "3", "approval": "1", "step0-weight": "5", "step0-hold": "10 min", "step0-samples": "50",
    "step1-weight": "50", "step1-hold": "1 h 30 min", "step1-samples": "60", "step2-weight": "", "step2-hold": "",
    "step2-samples": "", "ramp_s": "60 s", "bake_100_s": "30 min", "keep_previous_s": "1 h",
}  # fmt: skip


def said(outcome: Outcome, *verdicts: Verdict, words: str = "All 1 gates that were run pass.") -> Judgement:
    return Judgement(outcome, (*verdicts, *NOT_RUN), words, Summary(90_000, 108, 2), Summary(1_034, 1, 2))


@pytest.fixture
def world(personas, monkeypatch) -> World:
    made = make_world(personas.acme).install(monkeypatch)
    made.judgement = said(Outcome.PASS, GOOD)
    return made


@pytest.fixture
def bobs(personas) -> object:
    return member_actor(personas.bob, "acme")


@pytest.fixture
def bob(signed_in) -> Client:
    return signed_in("bob")


def here(rollout, act: str = "") -> str:
    return f"/t/acme/rollouts/{rollout.id}{act}"


def new_url(world: World) -> str:
    return f"/t/acme/deployments/{world.deployment.id}/rollouts/new"


def hidden(text: str) -> dict[str, str]:
    """What the form on a page that approves carries."""
    return {name: re.findall(f'name="{name}" value="([^"]*)"', text)[0] for name in ("revision", "step", "digest")}


def verbs(personas, rollout) -> list[str]:
    return [event.verb for event in list_audit(actor=member_actor(personas.alice, "acme"), target=rollout.id)][::-1]


def called(world: World, arms: dict[str, int]) -> None:
    """Have so many requests of each arm settle, a moment ago."""
    versions = {"stable": world.stable.id, "candidate": world.candidate.id}
    lives = [
        late(world.deployment.tenant_id, deployment_id=world.deployment.id, version_id=versions[arm], arm=arm)
        for arm, number in arms.items()
        for _ in range(number)
    ]
    metering.ingest(actor=PLATFORM, records=[record for life in lives for record in life.whole(10)])


# --- making one


def test_the_tab_of_a_deployment_says_what_a_rollout_is_and_leads_to_the_first(world, bob, signed_in):
    tab = f"/t/acme/deployments/{world.deployment.id}?tab=rollouts"
    text = page(bob, tab)
    assert "a little traffic at a time" in text
    assert f'href="{new_url(world)}">New rollout' in text
    assert "New rollout" not in page(signed_in("carol"), tab)
    assert "<html" not in page(bob, tab, hx_request="true")


def test_the_form_offers_ready_versions_with_the_own_model_first_and_says_the_usual_plan(world, bob, personas):
    other = make_version(personas.acme, "aaa")
    broken = make_version(personas.acme, "raw", state="rejected")
    text = page(bob, new_url(world))
    options = re.findall(r'<option value="(ver_\w+)"', text)
    assert options == [world.candidate.id, other.id]
    assert broken.id not in text
    for first in DEFAULT_PLAN.steps:
        assert f'value="{first.weight}"' in text
        assert f"{first.weight} % of the traffic for at least" in text
    assert "there is no traffic" in text
    assert "Evals and shadow traffic are not there yet" in text
    assert f"versions/{world.candidate.id}?tab=compare&amp;since={world.stable.id}" in text


def test_the_preview_says_how_long_steps_take_at_todays_traffic_and_whether_both_versions_fit(world, bob):
    called(world, {"stable": 60})
    form = ROWS | {"version_id": world.candidate.id, "stable": world.stable.id, "preview": "1"}
    text = bob.post(new_url(world), form, headers={"hx-request": "true"}).content.decode()
    assert "<html" not in text
    assert "5 % of the traffic for at least 10 min and 50 requests." in text
    assert "50 samples take that long at 60 requests a minute." in text
    assert "Its samples are too few to prove" in text
    assert "Fits side by side" in text
    assert "Because the test says so." in text
    wrong = bob.post(new_url(world), form | {"step1-weight": "3"}, headers={"hx-request": "true"}).content.decode()
    assert "each greater than the one before it" in wrong


def test_a_preset_a_further_row_and_enter_change_the_form_and_nothing_else(world, bob):
    chosen = ROWS | {"version_id": world.candidate.id}
    little = bob.post(new_url(world), chosen | {"preset": "little"})
    text = little.content.decode()
    assert little.status_code == 200
    assert "So few prove little" in text
    assert text.count('-weight" value=') == 3
    assert "step4-weight" not in text
    more = bob.post(new_url(world), chosen | {"more": "1"}).content.decode()
    assert 'name="step3-weight"' in more
    assert 'value="1 h 30 min"' in more
    assert bob.post(new_url(world), chosen | {"check": "1"}).status_code == 200
    assert "No rollout yet" in page(bob, "/t/acme/rollouts")


REFUSED = (
    ({"step0-hold": "soon"}, "Write a time with its unit"),
    ({"step0-hold": ""}, "This is needed."),
    ({"step1-weight": "5"}, "each greater than the one before it"),
    ({"step1-weight": "100"}, "from 1 to 99 per cent"),
    ({"approval": "2"}, "Choose the step after which a person approves."),
    ({"of": "usual"}, "cannot prove what the gate"),
    ({"keep_previous_s": "2 d"}, "from 0 to 86400"),
    ({"version_id": "ver_of_another"}, "is not one of the available choices"),
)
"""What is typed, and the fault that is told."""


def test_a_refused_plan_comes_back_with_its_fault_and_what_was_typed(world, bob):
    for fields, fault in REFUSED:
        answer = bob.post(new_url(world), ROWS | {"version_id": world.candidate.id, "draft": "1"} | fields)
        text = answer.content.decode()
        assert answer.status_code == 422
        assert fault in text
        assert 'value="60"' in text
    assert "No rollout yet" in page(bob, "/t/acme/rollouts")


def test_a_rollout_is_drafted_with_the_rows_as_they_were_typed_or_started_at_once(world, bob, personas):
    answer = bob.post(new_url(world), ROWS | {"version_id": world.candidate.id, "draft": "1"})
    assert answer.status_code == 302, answer.content.decode()
    draft = SimpleNamespace(id=answer["Location"].rsplit("/", 1)[1], pk=answer["Location"].rsplit("/", 1)[1])
    plan = stored(draft).view.plan
    assert [(each.weight, each.hold_s, each.min_samples) for each in plan.steps] == [(5, 600, 50), (50, 5400, 60)]
    assert (plan.approval_at, plan.ramp_s, plan.judge.accept_unproven) == (50, 60, True)
    text = page(bob, answer["Location"])
    assert "Nothing changes for callers" in text
    assert "5 % of the traffic for at least 10 min and 50 requests." in text
    again = ROWS | {"version_id": world.candidate.id, "start": "1"}
    assert "has the rollout" in bob.post(new_url(world), again).content.decode()
    assert draft.id in page(bob, new_url(world))
    second = bob.post(new_url(world), again | {"supersede": "1"}, follow=True).content.decode()
    assert "The rollout has started." in second
    assert stored(draft).state == "superseded"
    assert verbs(personas, draft) == ["rollout.create", "rollout.supersede"]


def test_without_another_ready_version_the_form_leads_to_an_upload(personas, bob):
    chat = deploy(personas.acme)
    text = page(bob, f"/t/acme/deployments/{chat.id}/rollouts/new")
    assert "no other version is ready" in text
    assert "/t/acme/uploads/new?model=tiny" in text


def test_while_frozen_a_started_rollout_stays_a_draft_and_says_so(world, bob, personas):
    services.freeze_rollouts(actor=platform_actor(personas.root), reason="the gateways are being changed")
    form = ROWS | {"version_id": world.candidate.id, "start": "1"}
    text = bob.post(new_url(world), form, follow=True).content.decode()
    assert "is drafted, and not started" in text
    assert ">Draft</span>" in text


# --- one under way


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


# --- approvals


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


# --- everywhere


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
