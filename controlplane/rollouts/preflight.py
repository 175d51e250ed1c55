"""Whether the old and the new version fit the fleet side by side, before anything is loaded. Pure.

Until the end of a rollout the stable version keeps all of its replicas, and the candidate grows to as many. A node can
hold one more where, of what it has available now, enough is left after what the system keeps and what the replicas that
run will still fill; and where it may run one more process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from controlplane.deployments.capacity import DoesNotFit, check_shares
from dataplane.contracts import memory
from dataplane.contracts.catalog import CANDIDATE, STABLE, EngineSettings, Share
from dataplane.contracts.memory import Plan, gib
from dataplane.contracts.model_config import ModelConfig
from dataplane.contracts.replica import Device, NodeReport, ReplicaReport, ReplicaState
from dataplane.contracts.room import co_residency

_S = ReplicaState
_HOLDING = frozenset({_S.LOADING, _S.WARMING, _S.READY, _S.ASLEEP})
"""Of a version: each counts as one of its replicas."""
_TAKEN = _HOLDING | {_S.DRAINING}
"""A process that no other version can have. A warm idle one is there to be taken."""
_NOT_SUPPORTED = (
    "Swapping versions through host memory and draining a replica first are not supported: stop another deployment, "
    "lower the KV memory, or add a machine."
)


class Outcome(StrEnum):
    """How the two versions can run at once.

    CO_RESIDENT: each replica of the candidate beside one of the stable version. SEPARATE: some on nodes of their own.
    """

    CO_RESIDENT = "co_resident"
    SEPARATE = "separate"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Version:
    """One of the two versions, and its model."""

    version_id: str
    config: ModelConfig


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it last reported."""

    name: str
    resources: NodeReport
    replicas: tuple[ReplicaReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is to run side by side.

    Args:
        deployment_id: of which deployment.
        engine: how its replicas run.
        shares: what its tenants are promised, by name.
        stable: the version that serves.
        candidate: the version that is tried.
        replicas: READY replicas that the deployment needs; each version has as many in the end.
        first_replicas: those of the candidate at its first step.
    """

    deployment_id: str
    engine: EngineSettings
    shares: Mapping[str, Share]
    stable: Version
    candidate: Version
    replicas: int
    first_replicas: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Replicas of an arm on a node: those there already and those to come, each of which takes ``needed_bytes``."""

    node: str
    arm: str
    running: int
    to_come: int
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class Preflight:
    """The outcome, why in words with numbers, and where each version's replicas would be."""

    outcome: Outcome
    words: str
    items: tuple[Placed, ...] = ()


def check(ask: Ask, nodes: Sequence[Node], planned_bytes: Mapping[tuple[str, str], int]) -> Preflight:
    """Return whether both versions can run side by side.

    Args:
        ask: what is to run.
        nodes: those heard of.
        planned_bytes: what a replica of (deployment id, version id) needs at most
            (:attr:`~dataplane.contracts.memory.Plan.needed_bytes`: its weights, which the kernel calls available, are
            in use). One that is not named is counted with what it holds.
    """
    fault = _fault(ask)
    if fault:
        return Preflight(Outcome.REFUSED, fault)
    versions = {STABLE: ask.stable, CANDIDATE: ask.candidate}
    plans = {arm: memory.plan(version.config, ask.engine) for arm, version in versions.items()}
    own_bytes = {(ask.deployment_id, version.version_id): plans[arm].needed_bytes for arm, version in versions.items()}
    places = [_Place(node, ask, {**planned_bytes, **own_bytes}) for node in nodes]
    for arm, plan in plans.items():
        for _ in range(ask.replicas - sum(place.running[arm] for place in places)):
            place = _best(places, arm, plan)
            if place is None:
                return Preflight(Outcome.REFUSED, _refusal(arm, plans, places))
            place.take(arm, plan)
    fitting = _fitting(ask, plans[CANDIDATE], places)
    items = tuple(
        Placed(place.name, arm, place.running[arm], place.to_come[arm], plan.needed_bytes)
        for place in places
        for arm, plan in plans.items()
        if place.count(arm)
    )
    return replace(fitting, items=items)


def _fault(ask: Ask) -> str:
    """Say what no amount of memory would mend; empty where nothing is."""
    if ask.engine.device not in ("auto", "cpu"):
        return f"Nodes do not report what is free on {ask.engine.device}, so two versions cannot be planned there."
    context_tokens = ask.candidate.config.context_tokens
    if ask.engine.max_model_len is not None and ask.engine.max_model_len > context_tokens:
        return (
            f"The deployment's context of {ask.engine.max_model_len:,} tokens is above the candidate's "
            f"{context_tokens:,}. Lower max_model_len first."
        )
    try:
        check_shares(ask.candidate.config, ask.engine, ask.shares, min_replicas=ask.first_replicas)
    except DoesNotFit as error:
        return f"Each version keeps the guarantees whole, and the candidate begins with {ask.first_replicas}: {error}"
    return ""


class _Place:
    """A node while replicas are put on it in thought.

    ``running`` and ``to_come`` count replicas by arm; ``free_bytes`` is what those to come may take together, and
    ``processes`` how many more there may be.
    """

    def __init__(self, node: Node, ask: Ask, planned_bytes: Mapping[tuple[str, str], int]) -> None:
        self.name, self.resources = node.name, node.resources
        held = [replica for replica in node.replicas if replica.state in _HOLDING]
        own = [replica for replica in held if replica.deployment_id == ask.deployment_id]
        arms = {STABLE: ask.stable.version_id, CANDIDATE: ask.candidate.version_id}
        self.running = {arm: sum(replica.version_id == id_ for replica in own) for arm, id_ in arms.items()}
        self.to_come = dict.fromkeys(arms, 0)
        self.taken_bytes = 0
        self.growth_bytes = sum(
            max(0, planned_bytes.get((replica.deployment_id, replica.version_id), 0) - replica.memory_bytes)
            for replica in held
        )
        self.kept_bytes = self.resources.memory_bytes - memory.usable_bytes(self.device)
        self.free_bytes = self.resources.available_bytes - self.kept_bytes - self.growth_bytes
        # others' sleepers give way to what needs their process
        giving_way = sum(replica.state is _S.ASLEEP for replica in held if replica not in own)
        taken = sum(replica.state in _TAKEN for replica in node.replicas)
        self.processes = self.resources.max_processes - taken + giving_way

    @property
    def device(self) -> Device:
        """The node's memory as a device."""
        return Device("cpu", self.name, self.resources.memory_bytes)

    @property
    def left_bytes(self) -> int:
        """What one more could take."""
        return self.free_bytes - self.taken_bytes

    def holds(self, plan: Plan) -> bool:
        """Say whether one more fits."""
        return self.processes > 0 and plan.needed_bytes <= self.left_bytes

    def take(self, arm: str, plan: Plan) -> None:
        """Put one more here."""
        self.to_come[arm] += 1
        self.processes -= 1
        self.taken_bytes += plan.needed_bytes

    def count(self, arm: str) -> int:
        """Return how many replicas of ``arm`` are here in the end."""
        return self.running[arm] + self.to_come[arm]


def _best(places: Sequence[_Place], arm: str, plan: Plan) -> _Place | None:
    """Return where the next replica goes: a candidate beside the stable version, then where most is left."""
    able = [place for place in places if place.holds(plan)]
    return max(able, key=lambda place: (arm == CANDIDATE and place.count(STABLE) > 0, place.left_bytes), default=None)


def _fitting(ask: Ask, plan: Plan, places: Sequence[_Place]) -> Preflight:
    apart = [place.name for place in places if place.count(CANDIDATE) and not place.count(STABLE)]
    how = f"with nodes of their own for the candidate ({', '.join(apart)})" if apart else "side by side"
    left = ", ".join(f"{gib(place.left_bytes)} of {place.name}" for place in places if place.count(CANDIDATE))
    words = (
        f"{ask.replicas} of each version fit {how}: a replica of the candidate takes {gib(plan.needed_bytes)} "
        f"({plan.words}), and {left} stay free."
    )
    return Preflight(Outcome.SEPARATE if apart else Outcome.CO_RESIDENT, words)


def _refusal(arm: str, plans: Mapping[str, Plan], places: Sequence[_Place]) -> str:
    plan = plans[arm]
    have = "; ".join(_lack(place, plan) for place in places) or "no node of the fleet is heard of"
    empty = [co_residency(plans[STABLE], plans[CANDIDATE], place.device) for place in places]
    never = [f"{each.words} " for each in empty[:1] if not any(one.fits for one in empty)]
    return (
        f"A replica of the {arm} version takes {gib(plan.needed_bytes)} ({plan.words}): {have}. "
        f"{''.join(never)}{_NOT_SUPPORTED}"
    )


def _lack(place: _Place, plan: Plan) -> str:
    if plan.needed_bytes <= place.left_bytes:
        return f"all {place.resources.max_processes} processes that {place.name} may run are taken"
    return (
        f"{place.name} has {gib(max(0, place.left_bytes))} for it ({gib(place.resources.available_bytes)} available, "
        f"less {gib(place.kept_bytes)} for the system, {gib(place.growth_bytes)} that running replicas will still fill "
        f"and {gib(place.taken_bytes)} for others of this rollout)"
    )
