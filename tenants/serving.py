"""How much a tenant may have served. These limits are decided in the control plane, before the fleet is asked."""

import msgspec


class ServingLimits(msgspec.Struct, frozen=True):
    """Limits of what a tenant deploys; None is no limit of its own: :data:`DEFAULT_SERVING` holds.

    Args:
        deployments: how many there may be, paused ones included.
        kept_replicas: replicas that all of them together keep ready without any demand, at the busiest times of their
            schedules. Each holds a process of the fleet that nobody else can have.
    """

    deployments: int | None = None
    kept_replicas: int | None = None


DEFAULT_SERVING = ServingLimits(deployments=20, kept_replicas=4)
