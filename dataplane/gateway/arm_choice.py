"""Which arm of a deployment a request goes to: the one its caller chose, else the one the weights give its caller."""

import msgspec

from dataplane.contracts import arms, headers
from dataplane.contracts.catalog import CANDIDATE, STABLE, Arm, DeploymentEntry
from dataplane.contracts.errors import ApiError, Code
from dataplane.gateway.auth import Caller
from dataplane.gateway.door import Headers
from dataplane.gateway.snapshot import Snapshot

_MAY_BE_CHOSEN = (STABLE, CANDIDATE)


class Choice(msgspec.Struct, frozen=True):
    """A deployment and one of its arms.

    ``forced``: the caller chose it. ``fallback`` takes the request where ``arm`` has no READY replica: the stable arm,
    unless the caller chose.
    """

    deployment: DeploymentEntry
    arm: Arm
    forced: bool = False
    fallback: Arm | None = None


def of(asked: Headers, snapshot: Snapshot, caller: Caller, model: str) -> Choice:
    """Return what ``caller`` means by ``model`` and its headers.

    Raises:
        ApiError: INVALID_PARAMETER where the header names no arm that may be chosen; else as :meth:`Snapshot.called`.
    """
    name = asked.only(headers.USE_ARM)
    if name is not None and name not in _MAY_BE_CHOSEN:
        raise ApiError(
            Code.INVALID_PARAMETER,
            f"The header '{headers.USE_ARM}' must be '{STABLE}' or '{CANDIDATE}'.",
            param=headers.USE_ARM,
        )
    deployment, chosen = snapshot.called(caller, model, name)
    if chosen is not None:
        return Choice(deployment, chosen, forced=True)
    given = arms.assign(deployment.arms, deployment.id, asked.get(headers.SESSION) or caller.key.id)
    stable = next(arm for arm in deployment.arms if arm.name == STABLE)
    return Choice(deployment, given, fallback=None if given is stable else stable)
