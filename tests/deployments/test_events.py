import pytest
from domain import PLATFORM, deploy

from controlplane.deployments import fleet, selectors, services
from controlplane.deployments.services import Changes
from dataplane.contracts.catalog import Share
from dataplane.contracts.replica import FleetReport, ReplicaEvent, ReplicaState, ReplicaTable
from tenants.actor import member_actor, platform_actor

LONG_AGO_MS = 1_000_000_000_000
FAR_AHEAD_MS = 4_000_000_000_000


@pytest.fixture
def bob(personas):
    return member_actor(personas.bob, "acme")


def replica_did(deployment, *steps: tuple[ReplicaState, ReplicaState, str], at_ms: int) -> None:
    events = tuple(
        ReplicaEvent(number, "rep_1", at_ms, old, new, cause, deployment.id, "ver_1")
        for number, (old, new, cause) in enumerate(steps, 1)
    )
    table = ReplicaTable(node="n1", number=1, at_ms=at_ms, replicas=())
    fleet.report_replicas(actor=PLATFORM, report=FleetReport(table=table, events=events))


def story(events) -> list[tuple[str, str, str]]:
    return [(str(event.kind), event.new, event.cause) for event in events]


def test_replicas_and_people_are_told_in_one_line_of_time_newest_first(personas, bob):
    chat, other = deploy(personas.acme), deploy(personas.acme, name="other")
    idle, loading, ready = ReplicaState.WARM_IDLE, ReplicaState.LOADING, ReplicaState.READY
    replica_did(chat, (idle, loading, "attached"), (loading, ready, "smoke passed"), at_ms=LONG_AGO_MS)
    replica_did(chat, (ready, ReplicaState.DRAINING, "not wanted"), at_ms=FAR_AHEAD_MS)
    services.configure_deployment(
        actor=bob, deployment_id=chat.id, revision=1, changes=Changes(kv_memory_mb=2, asleep_after_s=60)
    )
    services.set_grant(
        actor=platform_actor(personas.root), deployment_id=chat.id, grantee_slug="evil", share=Share(100)
    )
    services.pause_deployment(actor=bob, deployment_id=other.id)
    services.pause_deployment(actor=bob, deployment_id=chat.id)
    events = selectors.list_events(actor=bob, deployment_id=chat.id)
    assert story(events) == [
        ("replica", "draining", "not wanted"),
        ("state", "paused", "deployment.pause"),
        ("share", "", "grant.set"),
        ("settings", "", "deployment.configure"),
        ("state", "active", "deployment.create"),
        ("replica", "ready", "smoke passed"),
        ("replica", "loading", "attached"),
    ]
    replica, pause, share, settings, *_ = events
    assert (pause.old, pause.actor, pause.before) == ("active", "bob@acme.example", {})
    assert (share.before, share.after["tenant"], share.after["guarantee_tokens"]) == ({}, "evil", 100)
    assert (settings.before, settings.after) == (
        {"kv_memory_mb": 1, "asleep_after_s": None}, {"kv_memory_mb": 2, "asleep_after_s": 60},
    )  # fmt: skip
    assert (replica.actor, replica.replica_id, replica.version_id) == ("", "rep_1", "ver_1")
    assert selectors.list_events(actor=bob, deployment_id=chat.id, limit=3) == events[:3]


def test_who_may_not_read_the_audit_hears_what_happened_and_not_who_did_it(personas, bob):
    chat = deploy(personas.acme)
    services.pause_deployment(actor=bob, deployment_id=chat.id)
    seen = selectors.list_events(actor=member_actor(personas.carol, "acme"), deployment_id=chat.id)
    assert [(event.cause, event.actor) for event in seen] == [("deployment.pause", ""), ("deployment.create", "")]
