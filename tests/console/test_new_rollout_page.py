"""Making a rollout in the console: alice owns, bob develops and drafts, root runs the platform."""

import re
from types import SimpleNamespace

from console_world import page
from domain import deploy, make_version
from rollout_pages_world import ROWS, called, new_url, verbs
from rollout_world import stored

from controlplane.rollouts import services
from controlplane.rollouts.plan import DEFAULT_PLAN
from tenants.actor import platform_actor


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
