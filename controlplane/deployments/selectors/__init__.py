"""What is deployed, how it fares, and who may call it, as the actor may see it."""

from controlplane.deployments.dependents import Dependents
from controlplane.deployments.effect import Effect
from controlplane.deployments.selectors.deployments import (
    DeploymentName,
    DeploymentSummary,
    check_callable,
    deployment_names,
    deployment_state,
    find_deployment,
    get_deployment,
    list_all_deployments,
    list_dependents,
    list_deployments,
    list_serving,
)
from controlplane.deployments.selectors.effects import preview_share
from controlplane.deployments.selectors.events import DeploymentEvent, EventKind, list_events
from controlplane.deployments.selectors.pools import Pool, TenantPool, by_tenant, get_pool, list_pools
from controlplane.deployments.selectors.publishing import Publishing, publishing
from controlplane.deployments.selectors.replicas import (
    Costs,
    Node,
    Replica,
    list_fleet,
    list_replicas,
    list_restart_costs,
    restart_costs,
)
from controlplane.deployments.standing import DeploymentState, Standing

__all__ = [
    "Costs",
    "Dependents",
    "DeploymentEvent",
    "DeploymentName",
    "DeploymentState",
    "DeploymentSummary",
    "Effect",
    "EventKind",
    "Node",
    "Pool",
    "Publishing",
    "Replica",
    "Standing",
    "TenantPool",
    "by_tenant",
    "check_callable",
    "deployment_names",
    "deployment_state",
    "find_deployment",
    "get_deployment",
    "get_pool",
    "list_all_deployments",
    "list_dependents",
    "list_deployments",
    "list_events",
    "list_fleet",
    "list_pools",
    "list_replicas",
    "list_restart_costs",
    "list_serving",
    "preview_share",
    "publishing",
    "restart_costs",
]
