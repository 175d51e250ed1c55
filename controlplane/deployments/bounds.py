"""What the settings of a deployment and the shares of its tenants may be. Pure: each fault by field, with its mend."""

import re
from collections.abc import Mapping, Sequence

from controlplane.deployments.models import DEVICES
from controlplane.registry.models import NAME_PATTERN
from dataplane.contracts import precision
from dataplane.contracts.catalog import EngineSettings, IdlePolicy, KeepWarm, Share
from tenants.errors import Invalid

MAX_REPLICAS = 64
MAX_WEIGHT = 1000
MAX_PACE_MS = 1000
MAX_IDLE_S = 30 * 24 * 3600
MAX_COLD_WAIT_S = 300
MAX_SCHEDULES = 20
_DAY_MINUTES = 24 * 60
_MAX_TOKENS = 2**53
_ENGINE = {
    "max_num_seqs": (1, 4096),
    "kv_memory_mb": (1, 1 << 21),
    "block_size": (1, 256),
    "max_model_len": (1, 1 << 20),
}
_KNOWN = {"dtype": precision.WEIGHTS, "kv_dtype": precision.KV_CHOICES, "device": DEVICES}
_TIERS = ("asleep_after_s", "warm_after_s", "disk_after_s")

Faults = dict[str, str]


def refuse(faults: Mapping[str, str]) -> None:
    """Raise where there are faults.

    Raises:
        Invalid: with each field and its reason.
    """
    if faults:
        raise Invalid(" ".join(f"{field}: {reason}" for field, reason in faults.items()), fields=faults)


def name_faults(name: str) -> Faults:
    """Return what is wrong with a deployment's name."""
    if re.fullmatch(NAME_PATTERN, name, re.ASCII) is not None:
        return {}
    return {"name": "Use 2 to 64 of a-z, 0-9, dot, dash and underscore; a letter or digit first and last."}


def engine_faults(engine: EngineSettings) -> Faults:
    """Return what is wrong with how replicas are to run."""
    faults: Faults = {}
    for field, known in _KNOWN.items():
        if getattr(engine, field) not in known:
            faults[field] = f"This is one of {', '.join(known)}."
    for field, (low, high) in _ENGINE.items():
        value = getattr(engine, field)
        if value is not None and not low <= value <= high:
            faults[field] = _from_to(low, high)
    return faults


def replica_faults(min_replicas: int, max_replicas: int) -> Faults:
    """Return what is wrong with the numbers of replicas."""
    faults: Faults = {}
    if not 0 <= min_replicas <= MAX_REPLICAS:
        faults["min_replicas"] = _from_to(0, MAX_REPLICAS)
    if not max(1, min_replicas) <= max_replicas <= MAX_REPLICAS:
        faults["max_replicas"] = f"This is at least 1, at least min_replicas, and at most {MAX_REPLICAS}."
    return faults


def idle_faults(idle: IdlePolicy) -> Faults:
    """Return what is wrong with how an idle deployment steps down: each tier comes after the one before it."""
    faults: Faults = {}
    before: tuple[str, int] | None = None
    for field in _TIERS:
        after_s = getattr(idle, field)
        if after_s is None:
            continue
        if not 1 <= after_s <= MAX_IDLE_S:
            faults[field] = f"This is a number of seconds from 1 to {MAX_IDLE_S}, or empty for never."
        elif before is not None and after_s < before[1]:
            faults[field] = f"This is not before {before[0]} ({before[1]} seconds): it is the colder tier."
        before = field, after_s
    if not 0 <= idle.cold_wait_s <= MAX_COLD_WAIT_S:
        faults["cold_wait_s"] = f"This is a number of seconds from 0 to {MAX_COLD_WAIT_S}."
    return faults


def schedule_faults(schedules: Sequence[KeepWarm], max_replicas: int) -> Faults:
    """Return what is wrong with the times during which replicas are kept ready; the first fault stands for all."""
    if len(schedules) > MAX_SCHEDULES:
        return {"schedules": f"There are at most {MAX_SCHEDULES}."}
    for number, window in enumerate(schedules, 1):
        reason = _window_fault(window, max_replicas)
        if reason:
            return {"schedules": f"Schedule {number}: {reason}"}
    return {}


def share_faults(share: Share) -> Faults:
    """Return what is wrong with a tenant's share, whatever the pool."""
    faults: Faults = {}
    if not 0 <= share.guarantee_tokens <= _MAX_TOKENS:
        faults["guarantee_tokens"] = "This is a number of tokens, 0 for no guarantee."
    if share.cap_tokens is not None and not 1 <= share.cap_tokens <= _MAX_TOKENS:
        faults["cap_tokens"] = "This is a number of tokens, at least 1, or empty for the whole pool."
    if not 1 <= share.weight <= MAX_WEIGHT:
        faults["weight"] = _from_to(1, MAX_WEIGHT)
    if not 0 <= share.pace_ms <= MAX_PACE_MS:
        faults["pace_ms"] = _from_to(0, MAX_PACE_MS)
    return faults


def _window_fault(window: KeepWarm, max_replicas: int) -> str:
    if not window.days or len(set(window.days)) < len(window.days) or not set(window.days) <= set(range(7)):
        return "its days are different numbers from 0 (Monday) to 6 (Sunday), at least one."
    if not 0 <= window.from_minute < window.to_minute <= _DAY_MINUTES:
        return (
            f"it runs from a minute of the day (0 to {_DAY_MINUTES - 1}) to a later one (up to {_DAY_MINUTES}). "
            "What goes over midnight takes two."
        )
    if not 1 <= window.min_replicas <= max_replicas:
        return f"it keeps from 1 to max_replicas ({max_replicas}) replicas."
    return ""


def _from_to(low: int, high: int) -> str:
    return f"This is a whole number from {low} to {high}."
