"""Every change to deployments and their shares: keyword-only, the actor first, one transaction, its audit row."""

from controlplane.deployments.services.grants import remove_grant, rotate_cache, set_grant
from controlplane.deployments.services.lifecycle import (
    DEFAULT_KV_MEMORY_MB,
    OWNER_GUARANTEE,
    delete_deployment,
    deploy_version,
    pause_deployment,
    resume_deployment,
)
from controlplane.deployments.services.limits import ServingLimitReached
from controlplane.deployments.services.settings import Changes, configure_deployment

__all__ = [
    "DEFAULT_KV_MEMORY_MB",
    "OWNER_GUARANTEE",
    "Changes",
    "ServingLimitReached",
    "configure_deployment",
    "delete_deployment",
    "deploy_version",
    "pause_deployment",
    "remove_grant",
    "resume_deployment",
    "rotate_cache",
    "set_grant",
]
