import msgspec
import pytest
from domain import PLATFORM, deploy, make_version

from controlplane.deployments import fleet, selectors
from controlplane.deployments.models import FleetNode, ReplicaEvent, ReplicaRow, RestartCosts
from controlplane.metering.models import EndedReplica
from dataplane.contracts.generation import EngineLoad, TenantLoad
from dataplane.contracts.replica import (
    TRIAL_PREFIX,
    Device,
    FleetReport,
    NodeReport,
    ReplicaReport,
    ReplicaState,
    ReplicaTable,
    Tier,
    TierCost,
)
from dataplane.contracts.replica import ReplicaEvent as EventReport
from tenants.actor import acting_as, member_actor, platform_actor
from tenants.errors import Forbidden

AT_MS = 1_790_000_000_000


def replica(deployment_id: str = "", state: ReplicaState = ReplicaState.READY, name: str = "rep_1", **fields):
    return ReplicaReport(
        replica_id=name, node="n1", state=state, cause="attached", since_ms=AT_MS, socket="/run/x",
        deployment_id=deployment_id, **fields,
    )  # fmt: skip


def event(sequence: int, deployment_id: str = "", new: ReplicaState = ReplicaState.READY, name: str = "rep_1"):
    return EventReport(
        sequence=sequence, replica_id=name, at_ms=AT_MS + sequence, old=ReplicaState.WARMING, new=new,
        cause="smoke passed", deployment_id=deployment_id,
    )  # fmt: skip


def report(
    number: int, *replicas: ReplicaReport, events: tuple[EventReport, ...] = (), at_ms: int = AT_MS, **more
) -> None:
    table = ReplicaTable(node="n1", number=number, at_ms=at_ms + number, replicas=replicas)
    fleet.report_replicas(actor=PLATFORM, report=FleetReport(table=table, events=events, **more))


def states() -> dict[str, str]:
    with acting_as(PLATFORM):
        return dict(ReplicaRow.objects.values_list("replica_id", "state"))


def test_the_owner_sees_its_replicas_with_their_load(personas):
    deployment = deploy(personas.acme)
    load = EngineLoad(
        step=9, num_running=2, num_waiting=1, total_blocks=128, free_blocks=100, cached_blocks=8, owned_blocks=20,
        block_size=16, num_preemptions=0, prefix_cache_queries_tokens=0, prefix_cache_hits_tokens=0, prompt_tokens=0,
        generation_tokens=0,
    )  # fmt: skip
    tenant = TenantLoad(personas.acme.id, 0, 128, 1, 20, 8, 2, 1, 3.5)
    report(
        1, replica(deployment.id, load=load, tenants=[tenant]), replica(name="rep_idle", state=ReplicaState.WARM_IDLE)
    )
    alice = member_actor(personas.alice, "acme")
    (seen,) = selectors.list_replicas(actor=alice, deployment_id=deployment.id)
    assert (seen.row.state, seen.report.load, seen.report.tenants) == ("ready", load, [tenant])
    summary = selectors.get_deployment(actor=alice, deployment_id=deployment.id)
    assert (summary.ready_replicas, summary.num_replicas) == (1, 1)
    (node,) = selectors.list_fleet(actor=platform_actor(personas.root))
    assert [item.row.replica_id for item in node.replicas] == ["rep_1", "rep_idle"]
    with pytest.raises(Forbidden):
        selectors.list_fleet(actor=alice)


def test_the_table_is_replaced_and_an_overtaken_one_ignored(personas):
    report(5, replica(), replica(name="rep_2"))
    report(4, replica(state=ReplicaState.LOADING))
    assert states() == {"rep_1": "ready", "rep_2": "ready"}
    report(6, replica(state=ReplicaState.DRAINING))
    assert states() == {"rep_1": "draining"}
    report(1, replica(name="rep_9"), at_ms=AT_MS + 60_000)  # the fleet was started again and counts anew
    assert states() == {"rep_9": "ready"}


def test_an_event_told_twice_is_kept_once(personas):
    deployment = deploy(personas.acme)
    events = (event(1, deployment.id), event(2, deployment.id, ReplicaState.DRAINING))
    for number in (1, 2):
        report(number, replica(deployment.id), events=events)
    seen = selectors.list_events(actor=member_actor(personas.carol, "acme"), deployment_id=deployment.id)
    assert [(row.new, row.cause) for row in seen if row.replica_id] == [
        ("draining", "smoke passed"), ("ready", "smoke passed"),
    ]  # fmt: skip


def test_metering_hears_of_replicas_that_stopped_or_vanished(personas):
    report(1, replica(), replica(name="rep_2"), replica(name="rep_3"))
    stopped = ReplicaState.STOPPED
    report(2, replica(), replica(name="rep_2", state=stopped), events=(event(7, name="rep_4", new=stopped),))
    with acting_as(PLATFORM):
        assert set(EndedReplica.objects.values_list("replica_id", flat=True)) == {"rep_2", "rep_3", "rep_4"}


def test_the_last_told_costs_of_starts_are_shown_to_the_owner(personas):
    deployment, alice = deploy(personas.acme), member_actor(personas.alice, "acme")
    assert selectors.restart_costs(actor=alice, deployment_id=deployment.id) == selectors.Costs((), None)
    asleep, disk = TierCost(Tier.ASLEEP, 300, 450, 9), TierCost(Tier.DISK, 4_000, 5_000, 2)
    report(1, costs={deployment.id: (asleep,), "dep_of_before": (disk,)})
    first = selectors.restart_costs(actor=alice, deployment_id=deployment.id)
    assert first.tiers == (asleep,)
    report(2, costs={deployment.id: (asleep,)})
    assert selectors.restart_costs(actor=alice, deployment_id=deployment.id) == first
    report(3, costs={deployment.id: (disk, asleep)})
    assert selectors.restart_costs(actor=alice, deployment_id=deployment.id).tiers == (asleep, disk)


def test_a_nodes_resources_stay_known_when_a_report_leaves_them_out(personas):
    resources = NodeReport(
        memory_bytes=16, available_bytes=8, devices=(Device("cpu", "two cores", 16),), asleep_budget_bytes=4,
        warm_idle_floor=1, max_processes=8,
    )  # fmt: skip
    report(1, resources=resources)
    report(2)
    (node,) = selectors.list_fleet(actor=platform_actor(personas.root))
    assert node.resources == resources


def test_a_replica_on_trial_is_the_platforms_alone(personas):
    version = make_version(personas.acme)
    report(1, replica(f"{TRIAL_PREFIX}{version.id}"), events=(event(1, f"{TRIAL_PREFIX}{version.id}"),))
    with acting_as(PLATFORM):
        assert (ReplicaRow.objects.get().tenant_id, ReplicaEvent.objects.get().tenant_id) == (None, None)


def test_text_that_the_database_cannot_hold_does_not_stop_the_report(personas):
    report(1, msgspec.structs.replace(replica(), cause="a\0b", detail="c\0d" + "x" * 999))
    with acting_as(PLATFORM):
        assert ReplicaRow.objects.get().cause == "a\ufffdb"


def test_only_the_platform_reports_and_no_table_shows_a_stranger_anything(personas):
    deployment = deploy(personas.acme)
    costs = {deployment.id: (TierCost(Tier.DISK, 1, 1, 1),)}
    report(1, replica(deployment.id), events=(event(1, deployment.id),), costs=costs)
    mallory = member_actor(personas.mallory, "evil")
    with pytest.raises(Forbidden):
        fleet.report_replicas(actor=mallory, report=FleetReport(table=ReplicaTable("n", 1, 1, ()), events=()))
    for model in (ReplicaRow, ReplicaEvent, RestartCosts, FleetNode):
        with acting_as(PLATFORM):
            assert model.objects.exists()
        with acting_as(mallory):
            assert not model.objects.exists()
