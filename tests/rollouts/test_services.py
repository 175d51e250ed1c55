"""What people do with rollouts: alice owns, bob develops and drafts, carol looks, root runs the platform."""

import hashlib

import domain
import msgspec
import pytest
from domain import PLATFORM, deploy, make_version
from rollout_world import (
    ONE_STEP,
    Said,
    approve,
    begun,
    change,
    journal,
    make_world,
    path,
    publish,
    quick_plan,
    step,
    stored,
    walk,
)

from controlplane.deployments import services as deployments
from controlplane.deployments.services import Changes
from controlplane.notifications.models import Announcement, Delivery
from controlplane.registry.lifecycle import InUse, delete_version
from controlplane.rollouts import selectors, services
from controlplane.rollouts.plan import JudgeSettings
from controlplane.rollouts.states import Command
from dataplane.contracts.catalog import EngineSettings
from dataplane.contracts.replica import ReplicaState
from tenants.actor import acting_as, key_actor, member_actor, system_actor
from tenants.audit import verify_chain
from tenants.errors import Conflict, Forbidden, Invalid, NotFound
from tenants.models import AuditEvent, AuditHead, Member
from tenants.roles import Scope
from tenants.services import issue_key


def audits(verb: str) -> list[AuditEvent]:
    with acting_as(PLATFORM):
        return list(AuditEvent.objects.filter(verb=verb).order_by("sequence"))


def draft(world, actor, **more):
    said = {
        "deployment_id": world.deployment.id, "candidate_version_id": world.candidate.id, "plan": ONE_STEP,
    }  # fmt: skip
    return services.create_rollout(actor=actor, **(said | more))


def test_a_good_version_goes_through_every_step_is_approved_and_promoted(world, bob, alice):
    rollout = walk(begun(world, bob, plan=quick_plan(5, 50)), "awaiting_approval")
    assert rollout.state == "awaiting_approval"
    assert world.arms() == {"stable": ("old", 50, "ready"), "candidate": ("new", 50, "ready")}
    approve(alice, rollout)
    assert world.arms() == {"stable": ("old", 0, "ready"), "candidate": ("new", 100, "ready")}
    rollout = walk(rollout, "promoted")
    assert rollout.state == "promoted"
    assert world.arms() == {"stable": ("new", 100, "none"), "previous": ("old", 0, "asleep")}
    assert path(rollout) == [
        ("draft", -1), ("preflight", -1), ("loading", -1), ("warm", -1), ("shadow", -1),
        ("ramp", 0), ("bake", 0), ("judge", 0), ("ramp", 1), ("bake", 1), ("judge", 1), ("awaiting_approval", 1),
        ("promoting", 1), ("baking_100", 1), ("promoted", 1),
    ]  # fmt: skip
    assert [event.sequence for event in journal(rollout)] == list(range(1, 16))
    assert [event.weight for event in journal(rollout)] == [0] * 5 + [5] * 3 + [50] * 4 + [100] * 3
    assert (rollout.approved_by_id, rollout.approved_step, rollout.approved_digest) == (
        alice.id, 1, world.candidate.digest,
    )  # fmt: skip


def test_a_draft_changes_nothing_for_callers(world, bob):
    before = world.arms()
    rollout = draft(world, bob)
    assert (rollout.state, rollout.revision, world.arms()) == ("draft", 1, before)
    assert rollout.author_user_id == bob.id
    assert step(rollout) is None
    (created,) = audits("rollout.create")
    assert (created.actor_label, created.after["candidate_digest"]) == ("bob@acme.example", world.candidate.digest)


def test_who_may_not_is_refused_and_strangers_find_nothing(world, personas, bob, root):
    rollout = begun(world, bob, ONE_STEP)
    carol, mallory = member_actor(personas.carol, "acme"), member_actor(personas.mallory, "evil")
    revision = {"rollout_id": rollout.id, "expected_revision": rollout.revision}
    for actor, refusal in ((carol, Forbidden), (mallory, NotFound)):
        with pytest.raises(refusal):
            draft(world, actor)
        with pytest.raises(refusal):
            services.pause_rollout(actor=actor, **revision)
        with pytest.raises(refusal):
            services.roll_back(actor=actor, rollout_id=rollout.id)
        with pytest.raises(refusal):
            approve(actor, rollout)
    with pytest.raises(Forbidden):
        draft(world, root)
    with pytest.raises(NotFound):
        selectors.get_rollout(actor=mallory, rollout_id=rollout.id)
    assert selectors.list_rollouts(actor=mallory) == []
    assert services.pause_rollout(actor=root, **revision).state == "paused"


def test_an_approver_is_an_owner_or_runs_the_platform_and_is_never_the_author(world, personas, bob, alice, root):
    rollout = walk(begun(world, alice, ONE_STEP), "awaiting_approval")
    for actor in (alice, bob, system_actor("tests", personas.acme)):
        with pytest.raises(Forbidden):
            approve(actor, rollout)
    (pending,) = selectors.list_pending_approvals(actor=alice)
    assert (pending.missing, pending.refusal) == (
        ("evals", "shadow"), "You made this rollout; somebody else approves it.",
    )  # fmt: skip
    (pending,) = selectors.list_pending_approvals(actor=root)
    assert pending.refusal == ""
    assert Command.APPROVE in pending.summary.commands
    assert approve(root, rollout).state == "promoting"
    (approved,) = audits("rollout.approve")
    assert approved.after["waivers"] == {"evals": "no suite of ours covers it", "shadow": "checked by hand"}
    assert approved.tenant_id == personas.acme.id


def test_the_author_behind_a_key_is_the_person_who_made_the_key(world, alice, root):
    key = issue_key(actor=alice, name="ci", scopes=[Scope.DEPLOYMENTS]).key
    rollout = walk(begun(world, key_actor(key), ONE_STEP), "awaiting_approval")
    assert (rollout.author_kind, rollout.author_id, rollout.author_user_id) == ("key", key.id, alice.id)
    with pytest.raises(Forbidden):
        approve(alice, rollout)
    with pytest.raises(Forbidden):
        approve(key_actor(key), rollout)
    assert approve(root, rollout).state == "promoting"


def test_an_approval_of_another_content_or_step_or_without_its_reasons_is_refused(world, bob, alice):
    rollout = walk(begun(world, bob, ONE_STEP), "awaiting_approval")
    for changed in ({"digest": "0" * 64}, {"step": 1}, {"expected_revision": rollout.revision - 1}):
        with pytest.raises(Conflict):
            approve(alice, rollout, **changed)
    with pytest.raises(Invalid) as refused:
        approve(alice, rollout, waivers={"evals": "  ", "cheese": "yes"})
    assert set(refused.value.fields) == {"waivers.evals", "waivers.shadow"}
    world.report(ReplicaState.DRAINING)
    with pytest.raises(Conflict, match="READY"):
        approve(alice, rollout)
    assert stored(rollout).revision == rollout.revision


def test_what_cannot_be_the_candidate_is_refused_with_the_reason(world, personas, bob, monkeypatch):
    with pytest.raises(Invalid, match="serves already"):
        draft(world, bob, candidate_version_id=world.stable.id)
    with pytest.raises(NotFound):
        draft(world, bob, candidate_version_id=make_version(personas.evil).id)
    with pytest.raises(Conflict, match="only a ready one"):
        draft(world, bob, candidate_version_id=make_version(personas.acme, state="rejected").id)
    with pytest.raises(Invalid, match="approval_at"):
        draft(world, bob, plan=quick_plan(5, 50, approval_at=7))
    monkeypatch.setattr(domain, "CONFIG", msgspec.structs.replace(domain.CONFIG, context_tokens=64))
    short = make_version(personas.acme)
    monkeypatch.undo()
    settings = EngineSettings(kv_memory_mb=1, block_size=16, max_model_len=512)
    long = deploy(personas.acme, name="long", engine=settings)
    with pytest.raises(Invalid, match="context of 64 tokens"):
        draft(world, bob, deployment_id=long.id, candidate_version_id=short.id)
    deployments.pause_deployment(actor=bob, deployment_id=long.id)
    with pytest.raises(Conflict, match="Resume it first"):
        draft(world, bob, deployment_id=long.id)


def test_a_second_rollout_is_refused_unless_it_says_that_it_supersedes_the_first(world, personas, bob):
    first = walk(begun(world, bob, ONE_STEP), "bake")
    with pytest.raises(Conflict, match=first.id):
        draft(world, bob)
    second = draft(world, bob, supersede=True)
    assert (stored(first).state, second.state) == ("superseded", "draft")
    assert world.arms() == {"stable": ("old", 100, "none")}
    assert journal(first)[-1].cause == "Superseded by another rollout of bob@acme.example."
    rolling = begun(make_world(personas.acme, name="other"), bob, ONE_STEP)
    services.roll_back(actor=bob, rollout_id=rolling.id)
    with pytest.raises(Conflict, match="wait until its rollback has ended"):
        services.create_rollout(
            actor=bob, deployment_id=rolling.deployment_id, candidate_version_id=rolling.candidate_version_id,
            plan=ONE_STEP, supersede=True,
        )  # fmt: skip


def test_a_paused_rollout_stays_where_it_is_until_it_is_resumed(world, bob):
    rollout = walk(begun(world, bob, ONE_STEP), "bake")
    arms = world.arms()
    halted = services.pause_rollout(
        actor=bob, rollout_id=rollout.id, expected_revision=rollout.revision, reason="it rains"
    )  # fmt: skip
    assert (halted.state, halted.paused_from, halted.reason) == (
        "paused", "bake", "Paused by bob@acme.example: it rains",
    )  # fmt: skip
    assert step(rollout) is None
    assert world.arms() == arms
    with pytest.raises(Conflict, match="moved on"):
        services.resume_rollout(actor=bob, rollout_id=rollout.id, expected_revision=rollout.revision)
    with pytest.raises(Conflict, match="roll it back instead"):
        services.abort_rollout(actor=bob, rollout_id=rollout.id, expected_revision=halted.revision)
    resumed = services.resume_rollout(actor=bob, rollout_id=rollout.id, expected_revision=halted.revision)
    assert (resumed.state, resumed.paused_from, resumed.reason) == ("bake", "", "")


def test_a_rollout_without_traffic_is_aborted(world, bob):
    rollout = walk(begun(world, bob, ONE_STEP), "loading")
    assert world.arms() == {"stable": ("old", 100, "none"), "candidate": ("new", 0, "ready")}
    ended = services.abort_rollout(actor=bob, rollout_id=rollout.id, expected_revision=rollout.revision)
    assert (ended.state, ended.ended_at is not None) == ("aborted", True)
    assert world.arms() == {"stable": ("old", 100, "none")}


@pytest.mark.parametrize("where", ["preflight", "loading", "bake", "paused", "awaiting_approval", "baking_100"])
def test_a_rollback_takes_all_traffic_away_wherever_the_rollout_is(world, bob, alice, where):
    rollout = begun(world, bob, ONE_STEP)
    if where == "paused":
        world.judgement = Said("inconclusive")
    if where == "baking_100":
        approve(alice, walk(rollout, "awaiting_approval"))
    rollout = walk(rollout, where)
    assert rollout.state == where
    answer = services.roll_back(actor=bob, rollout_id=rollout.id, reason="it lies")
    assert (answer.applied, answer.rollout.state) == (True, "rolling_back")
    assert world.arms() == {"stable": ("old", 100, "none")}
    again = services.roll_back(actor=bob, rollout_id=rollout.id)
    assert (again.applied, again.words) == (False, "It is rolling back already.")
    assert walk(rollout, "rolled_back").reason == "Rolled back by bob@acme.example: it lies"
    late = services.roll_back(actor=bob, rollout_id=rollout.id)
    assert (late.applied, late.words) == (False, "It is rolled back: its candidate has no traffic.")


def test_after_a_promotion_a_rollback_wakes_the_version_before_then_swaps(world, bob, alice, root):
    rollout = walk(begun(world, bob, ONE_STEP), "awaiting_approval")
    approve(alice, rollout)
    walk(rollout, "promoted")
    further = services.create_rollout(
        actor=bob, deployment_id=world.deployment.id, candidate_version_id=world.stable.id, plan=ONE_STEP
    )
    world.report(ReplicaState.READY, stable=ReplicaState.ASLEEP)
    assert services.roll_back(actor=root, rollout_id=rollout.id).applied
    assert stored(further).state == "superseded", "it would have started from a version that no longer serves"
    assert world.arms() == {"stable": ("new", 100, "none"), "previous": ("old", 0, "ready")}
    assert step(rollout) is None
    world.report(ReplicaState.READY, stable=ReplicaState.READY)
    assert step(rollout) == "rolled_back"
    assert world.arms() == {"stable": ("old", 100, "none")}


@pytest.mark.parametrize("end", ["pause", "delete"])
def test_a_promotion_is_taken_back_of_a_deployment_that_ends_as_well(world, bob, alice, end):
    rollout = walk(begun(world, bob, ONE_STEP), "awaiting_approval")
    approve(alice, rollout)
    walk(rollout, "promoted")
    assert services.roll_back(actor=bob, rollout_id=rollout.id).applied
    world.report(ReplicaState.READY, stable=ReplicaState.STOPPED)
    assert step(rollout) is None, "the version before does not start"
    if end == "pause":
        deployments.pause_deployment(actor=bob, deployment_id=world.deployment.id)
    else:
        deployments.delete_deployment(actor=bob, deployment_id=world.deployment.id, confirm=world.deployment.name)
    assert step(rollout) == "rolled_back"
    assert world.arms() == {"stable": ("old", 100, "none")}


def test_a_promotion_that_is_too_old_or_was_followed_by_another_start_is_not_taken_back(world, bob, alice):
    rollout = walk(begun(world, bob, plan=quick_plan(keep_previous_s=0)), "awaiting_approval")
    approve(alice, rollout)
    walk(rollout, "promoted")
    assert step(rollout) == "promoted"
    assert world.arms() == {"stable": ("new", 100, "none")}
    late = services.roll_back(actor=bob, rollout_id=rollout.id)
    assert (late.applied, late.words.startswith("The version before is not kept")) == (False, True)


def test_the_start_of_the_next_rollout_lets_the_version_before_go(world, bob, alice):
    first = walk(begun(world, bob, ONE_STEP), "awaiting_approval")
    approve(alice, first)
    walk(first, "promoted")
    second = services.create_rollout(
        actor=bob, deployment_id=world.deployment.id, candidate_version_id=world.stable.id, plan=ONE_STEP
    )
    assert "previous" in world.arms()
    services.start_rollout(actor=bob, rollout_id=second.id, expected_revision=1)
    assert world.arms() == {"stable": ("new", 100, "none")}
    assert not services.roll_back(actor=bob, rollout_id=first.id).applied
    assert journal(first)[-1].cause == f"The version before is let go: {second.id} has started."


def test_a_deployment_and_a_version_in_a_rollout_are_left_alone_and_the_rollout_is_named(world, bob, alice):
    rollout = draft(world, bob)
    chat = world.deployment
    for refused in (
        lambda: deployments.pause_deployment(actor=bob, deployment_id=chat.id),
        lambda: deployments.delete_deployment(actor=bob, deployment_id=chat.id, confirm=chat.name),
        lambda: deployments.configure_deployment(
            actor=bob, deployment_id=chat.id, revision=1, changes=Changes(max_num_seqs=4)
        ),
        lambda: delete_version(actor=bob, version_id=world.candidate.id),
    ):
        with pytest.raises(InUse, match=rollout.id):
            refused()
    deployments.configure_deployment(actor=bob, deployment_id=chat.id, revision=1, changes=Changes(cold_wait_s=9))
    services.abort_rollout(actor=bob, rollout_id=rollout.id, expected_revision=1)
    delete_version(actor=bob, version_id=world.candidate.id)
    deployments.delete_deployment(actor=bob, deployment_id=chat.id, confirm=chat.name)


def test_a_freeze_stops_what_leads_forward_and_no_rollback(world, personas, bob, alice, root):
    with pytest.raises(Forbidden):
        services.freeze_rollouts(actor=alice, reason="mine")
    rollout = walk(begun(world, bob, ONE_STEP), "bake")
    services.freeze_rollouts(actor=root, reason="the holidays")
    with pytest.raises(Conflict, match="the holidays"):
        services.freeze_rollouts(actor=root, reason="again")
    assert selectors.get_freeze(actor=bob).reason == "the holidays"
    assert step(rollout) is None
    story = selectors.get_rollout(actor=bob, rollout_id=rollout.id).summary
    assert story.waits_for.startswith("All rollouts are frozen")
    assert Command.ROLL_BACK in story.commands
    waiting = draft(make_world(personas.acme, name="other"), bob)
    with pytest.raises(Conflict, match="frozen"):
        services.start_rollout(actor=bob, rollout_id=waiting.id, expected_revision=1)
    assert services.roll_back(actor=bob, rollout_id=rollout.id).applied
    assert walk(rollout, "rolled_back").state == "rolled_back"
    services.unfreeze_rollouts(actor=root)
    with pytest.raises(Conflict, match="not frozen"):
        services.unfreeze_rollouts(actor=root)
    assert services.start_rollout(actor=bob, rollout_id=waiting.id, expected_revision=1).state == "preflight"
    assert [row.tenant_id for row in (*audits("rollouts.freeze"), *audits("rollouts.unfreeze"))] == [None, None]


def test_people_are_told_of_what_concerns_them(world, personas, bob, alice):
    rollout = walk(begun(world, bob, ONE_STEP), "awaiting_approval")
    approve(alice, rollout)
    walk(rollout, "promoted")
    with acting_as(PLATFORM):
        told = list(Announcement.objects.order_by("id"))
        letters = {
            announcement.event: set(
                Delivery.objects.filter(announcement=announcement, webhook=None).values_list("email", flat=True)
            )
            for announcement in told
        }
    assert letters == {
        "rollout.started": {"bob@acme.example"},
        "rollout.awaiting_approval": {"alice@acme.example", "root@pagoda.example"},
        "rollout.promoted": {"bob@acme.example", "alice@acme.example"},
    }
    assert {announcement.subject_id for announcement in told} == {rollout.id}
    assert told[0].link_path == f"/t/acme/rollouts/{rollout.id}"
    with acting_as(PLATFORM):
        links = dict(
            Delivery.objects.filter(announcement__event="rollout.awaiting_approval").values_list("email", "link_path")
        )
    assert links == {"alice@acme.example": "", "root@pagoda.example": f"/platform/rollouts/{rollout.id}"}


def test_who_has_left_the_tenant_hears_no_more_of_its_rollouts(world, personas, bob):
    rollout = walk(begun(world, bob, ONE_STEP), "awaiting_approval")
    with acting_as(PLATFORM):
        Member.objects.filter(user=personas.bob).delete()
        Delivery.objects.all().delete()
    services.roll_back(actor=member_actor(personas.alice, "acme"), rollout_id=rollout.id)
    assert walk(rollout, "rolled_back").state == "rolled_back"
    with acting_as(PLATFORM):
        assert not Delivery.objects.filter(email="bob@acme.example").exists()


def test_the_chain_of_the_audit_vouches_for_what_was_judged(world, bob):
    odd = JudgeSettings(accept_unproven=True, stop_alpha=1e-6, ttft_limit=1.1000000000000003)
    rollout = walk(begun(world, bob, plan=msgspec.structs.replace(ONE_STEP, judge=odd)), "awaiting_approval")
    (event,) = [event for event in journal(rollout) if event.new == "awaiting_approval"]
    assert (event.evidence["outcome"], event.evidence["words"]) == ("pass", "Because the test says so.")
    assert event.evidence["plan"] == rollout.plan
    assert event.evidence["memory"].startswith("Preflight passed.")
    sealed = hashlib.sha256(msgspec.json.encode(event.evidence, order="deterministic")).hexdigest()
    assert audits("rollout.advance")[-1].after["evidence_sha256"] == sealed
    with acting_as(PLATFORM):
        assert list(verify_chain(AuditHead.objects.get(tenant=world.deployment.tenant))) == []


def test_lists_show_the_newest_first_with_what_each_waits_for(world, personas, bob, alice, root):
    first = draft(world, bob)
    services.abort_rollout(actor=bob, rollout_id=first.id, expected_revision=1)
    second = walk(begun(world, bob, ONE_STEP), "bake")
    listed = selectors.list_rollouts(actor=bob, deployment_id=world.deployment.id)
    assert [item.rollout.id for item in listed] == [second.id, first.id]
    assert [item.rollout.id for item in selectors.list_rollouts(actor=root, live_only=True)] == [second.id]
    assert (listed[0].weight, listed[0].waits_for.startswith("Bakes step 1 of 1 (50 %) until ")) == (50, True)
    assert listed[0].commands == {Command.PAUSE, Command.ROLL_BACK, Command.SUPERSEDE}
    assert listed[1].commands == frozenset()
    carol = member_actor(personas.carol, "acme")
    assert selectors.list_rollouts(actor=carol)[0].commands == frozenset()
    story = selectors.get_rollout(actor=carol, rollout_id=second.id)
    assert [event.new for event in story.events][:2] == ["draft", "preflight"]
    publish()
    change(second, stumble="it fell")
    assert selectors.get_rollout(actor=carol, rollout_id=second.id).summary.rollout.stumble == "it fell"
