"""What the preflight is asked, out of PostgreSQL: grants, the nodes that are heard of, and what others will fill."""

from datetime import timedelta

import pytest
from django.utils import timezone
from domain import CONFIG, PLATFORM, deploy, make_version
from rollout_world import begun, make_world, quick_plan

from controlplane.deployments.fleet import report_replicas
from controlplane.deployments.models import FleetNode, Grant
from controlplane.rollouts import side_by_side
from controlplane.rollouts.models import Rollout
from controlplane.rollouts.observation import observe
from controlplane.rollouts.preflight import Outcome
from dataplane.contracts import memory
from dataplane.contracts.replica import FleetReport, NodeReport, ReplicaReport, ReplicaState, ReplicaTable
from tenants.actor import acting_as

GIB = 1024**3


@pytest.fixture
def world(personas):
    return make_world(personas.acme)


def report(world, *, room_bytes, others=(), node="roomy"):
    """Let a node say that it runs the stable version and ``others``, and has ``room_bytes`` to plan with."""
    versions = [(world.deployment.id, world.stable.id), *others]
    replicas = tuple(
        ReplicaReport(
            replica_id=f"rep_{deployment_id}", node=node, state=ReplicaState.READY, cause="", since_ms=1, socket="/s",
            deployment_id=deployment_id, version_id=version_id,
        )
        for deployment_id, version_id in versions
    )  # fmt: skip
    total_bytes = 100 * GIB
    resources = NodeReport(
        memory_bytes=total_bytes, available_bytes=total_bytes - int(total_bytes * 0.85) + room_bytes, devices=(),
        asleep_budget_bytes=0, warm_idle_floor=1, max_processes=8,
    )  # fmt: skip
    table = ReplicaTable(node=node, number=1, at_ms=int(timezone.now().timestamp() * 1000), replicas=replicas)
    report_replicas(actor=PLATFORM, report=FleetReport(table=table, events=(), resources=resources))


def planned(rollout, *, kept=1):
    with acting_as(PLATFORM):
        row = Rollout.objects.get(pk=rollout.pk)
        return side_by_side.planned(row, kept=kept, heard_since=timezone.now() - timedelta(minutes=5))


def test_nothing_is_said_before_a_node_has_said_what_it_has(world):
    rollout = begun(world)
    assert planned(rollout) is None
    assert observe(rollout.id).fit is None
    report(world, room_bytes=50 * GIB)
    assert observe(rollout.id).fit.outcome == "co_resident"
    with acting_as(PLATFORM):
        FleetNode.objects.update(seen_at=timezone.now() - timedelta(hours=1))
    assert planned(rollout) is None


def test_what_the_stable_replica_will_still_fill_is_counted_and_so_is_anothers(world, personas):
    plan, rollout = memory.plan(CONFIG, world.deployment.engine), begun(world)
    version = make_version(personas.evil)
    other = deploy(personas.evil, name="other", version=version)
    needed_bytes = 2 * plan.needed_bytes  # of the candidate, and the growth of the stable replica
    crowd = [(other.id, version.id), ("trial_x", "ver_gone")]
    for node, room_bytes, others, expected in (
        ("a", needed_bytes, [], Outcome.CO_RESIDENT),
        ("b", needed_bytes - 1, [], Outcome.REFUSED),
        ("c", needed_bytes + plan.needed_bytes, crowd, Outcome.CO_RESIDENT),
        ("d", needed_bytes + plan.needed_bytes - 1, crowd, Outcome.REFUSED),
    ):
        report(world, room_bytes=room_bytes, others=others, node=node)
        assert planned(rollout).outcome is expected
        with acting_as(PLATFORM):
            FleetNode.objects.update(resources=None)


def test_guarantees_are_held_against_the_candidates_replicas_of_the_first_step(world):
    report(world, room_bytes=80 * GIB)
    rollout = begun(world, plan=quick_plan(5, 50))
    pool_tokens = memory.safe_guarantees(CONFIG, world.deployment.engine, 1)
    with acting_as(PLATFORM):
        Grant.objects.filter(deployment=world.deployment).update(guarantee_tokens=2 * pool_tokens)
    found = planned(rollout, kept=2)
    assert found.outcome is Outcome.REFUSED
    assert "begins with 1" in found.words
    assert "acme" in found.words
