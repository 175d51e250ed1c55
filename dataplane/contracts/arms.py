"""The arms of a deployment: which one a caller lands on, how many replicas each needs, and what makes them a whole."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from dataplane.contracts.catalog import CANDIDATE, PREVIOUS, STABLE, Arm, Hold

_NAMES = frozenset({STABLE, CANDIDATE, PREVIOUS})


def assign(arms: Sequence[Arm], deployment_id: str, sticky_key: str) -> Arm:
    """Return the arm of ``sticky_key`` (a session or caller): exact in expectation, and the same in every gateway.

    The key hashes to a point in [0, 100); arms take consecutive intervals in the order given, so growing the candidate
    by moving one border moves only the callers between the old and the new border.

    Raises:
        ValueError: no arms, or weights that do not sum to 100.
    """
    if not arms or sum(arm.weight for arm in arms) != 100:
        raise ValueError("the weights of a deployment's arms must sum to 100")
    raw = hashlib.sha256(f"{deployment_id}\0{sticky_key}".encode("utf-8", "surrogatepass")).digest()[:8]
    point = int.from_bytes(raw, "big") * 100 / 2**64
    border = 0
    weighty = [arm for arm in arms if arm.weight > 0]
    for arm in weighty:
        border += arm.weight
        if point < border:
            return arm
    return weighty[-1]  # a point that was rounded up to 100


def fault(arms: Sequence[Arm]) -> str:
    """Say in words what keeps ``arms`` from being those of a deployment; empty where nothing does.

    The weights sum to 100 over ``stable`` and ``candidate``, each there at most once, the first always; ``previous``
    has none.
    """
    names = Counter(arm.name for arm in arms)
    unknown = sorted(names.keys() - _NAMES)
    if unknown:
        return f"there is no arm of the name '{unknown[0]}'"
    if names[STABLE] == 0 or max(names.values()) > 1:
        return "there must be one arm 'stable', and each other arm at most once"
    if any(arm.weight for arm in arms if arm.name == PREVIOUS):
        return "the arm 'previous' may have no weight"
    total = sum(arm.weight for arm in arms)
    if total != 100 or any(arm.weight < 0 for arm in arms):
        return f"the weights of 'stable' and 'candidate' must sum to 100, not {total}"
    return ""


def replicas_for(arm: Arm, kept: int) -> int:
    """Return how many READY replicas ``arm`` needs where its deployment needs ``kept``.

    The stable arm has them all at any weight, so that traffic can come back to it at once. A candidate has its part,
    and one at least: without one it would be given no traffic, and nobody would wait for it.
    """
    if arm.name == STABLE:
        return max(kept, int(arm.hold is Hold.READY))
    if arm.weight == 0 and arm.hold is not Hold.READY:
        return 0
    return max(1, -(-kept * arm.weight // 100))


def may_be_called(arm: Arm) -> bool:
    """Say whether a caller may choose ``arm``, by name or by version: one that is READY or wakes for its callers."""
    return arm.name == STABLE or (arm.name == CANDIDATE and replicas_for(arm, 0) > 0)
