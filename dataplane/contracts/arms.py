"""Which arm of a deployment a caller lands on: sticky, exact in expectation, and the same in every gateway."""

import hashlib
from collections.abc import Sequence

from dataplane.contracts.catalog import Arm


def assign(arms: Sequence[Arm], deployment_id: str, sticky_key: str) -> Arm:
    """Return the arm of ``sticky_key`` (a session or caller).

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
