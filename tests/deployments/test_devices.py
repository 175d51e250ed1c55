"""The devices that may be planned with."""

from datetime import timedelta

import msgspec
from django.utils import timezone

from controlplane.deployments.devices import of_fleet
from controlplane.deployments.models import FleetNode
from controlplane.registry.devices import devices
from dataplane.contracts.replica import Device, NodeReport
from tenants.actor import acting_as, system_actor

GPU = Device(kind="cuda", name="H200", memory_bytes=141 << 30)


def report(name: str, *devices: Device, silent_for: timedelta = timedelta(0)) -> None:
    has = NodeReport(
        memory_bytes=1, available_bytes=1, devices=devices, asleep_budget_bytes=0, warm_idle_floor=1, max_processes=1
    )
    now = timezone.now()
    with acting_as(system_actor("tests")):
        FleetNode.objects.create(
            node=name, number=1, at=now, seen_at=now - silent_for, resources=msgspec.to_builtins(has)
        )


def test_what_nodes_reported_lately_is_planned_with(db):
    report("here", GPU)
    report("long gone", GPU, silent_for=timedelta(hours=2))
    assert of_fleet() == [GPU]
    assert devices() == [GPU]


def test_while_no_node_has_told_what_it_has_this_machine_is_planned_with(db):
    assert of_fleet() == []
    (device,) = devices()
    assert device.kind == "cpu"
    assert device.memory_bytes > 1 << 28
