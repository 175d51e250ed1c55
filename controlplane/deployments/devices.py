"""The devices that the fleet's nodes report, for those who plan what may run on them."""

from datetime import timedelta

import msgspec
from django.utils import timezone

from controlplane.deployments.models import FleetNode
from dataplane.contracts.replica import Device, NodeReport
from tenants.actor import reading_as, system_actor

_READER = system_actor("planner")
_FORGOTTEN = timedelta(hours=1)
"""A node that was silent so long is not counted on; a shorter absence is a restart."""


def of_fleet() -> list[Device]:
    """Return the devices of every node that reported lately; empty where none has said what it has."""
    with reading_as(_READER):
        lately = FleetNode.objects.filter(seen_at__gt=timezone.now() - _FORGOTTEN, resources__isnull=False)
        reported = list(lately.order_by("node").values_list("resources", flat=True))
    return [device for resources in reported for device in msgspec.convert(resources, NodeReport).devices]
