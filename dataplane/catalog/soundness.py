"""Keeps out of force what must not be: the arms of a deployment that are not a whole. Pure.

Only those arms are kept out, and the deployment's last good ones stay instead: a snapshot that is refused whole would
keep back revocations that are in it, or behind it.
"""

from collections.abc import Mapping

import msgspec

from dataplane.contracts import arms
from dataplane.contracts.catalog import Catalog, VersionEntry


class Sound(msgspec.Struct, frozen=True):
    """A catalog that may be in force, and what of the one it was made of may not: the fault, by deployment."""

    catalog: Catalog
    faults: Mapping[str, str]


def sound(new: Catalog, last_good: Catalog) -> Sound:
    """Return ``new`` with only deployments whose arms are a whole.

    One whose arms are not keeps those it has in ``last_good``, with their versions; one that is not there is left out.
    """
    found = {deployment.id: arms.fault(deployment.arms) for deployment in new.deployments.values()}
    faults = {deployment_id: fault for deployment_id, fault in found.items() if fault}
    if not faults:
        return Sound(new, faults)
    deployments = {key: entry for key, entry in new.deployments.items() if key not in faults}
    versions: dict[str, VersionEntry] = {}
    for deployment_id in faults.keys() & last_good.deployments.keys():
        kept = last_good.deployments[deployment_id].arms
        deployments[deployment_id] = msgspec.structs.replace(new.deployments[deployment_id], arms=kept)
        ids = {arm.version_id for arm in kept}
        versions |= {key: entry for key, entry in last_good.versions.items() if key in ids}
    return Sound(msgspec.structs.replace(new, deployments=deployments, versions=versions | new.versions), faults)
