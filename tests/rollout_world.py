"""A deployment with two versions, a fleet that reports what a test says, and a judge that says what it is told."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count

import msgspec
from django.utils import timezone
from domain import PLATFORM, deploy, make_version

from controlplane.deployments.fleet import report_replicas
from controlplane.deployments.models import Deployment, DeploymentArm
from controlplane.registry.models import ModelVersion
from controlplane.rollouts import observation, services
from controlplane.rollouts.models import Rollout, RolloutEvent
from controlplane.rollouts.plan import JudgeSettings, Plan, Step
from controlplane.rollouts.states import RolloutState
from dataplane.contracts.replica import FleetReport, ReplicaReport, ReplicaState, ReplicaTable
from tenants.actor import Actor, acting_as, system_actor
from tenants.models import OutboxEvent, Tenant

WAIVERS = {"evals": "no suite of ours covers it", "shadow": "checked by hand"}


def quick_plan(*weights: int, approval_at: int | None = None, **more: int) -> Plan:
    """Return a plan whose clocks have run out at once and which one sample satisfies."""
    steps = tuple(Step(weight, 0, 1) for weight in weights or (5, 50))
    times = {"ramp_s": 0, "bake_100_s": 0, "keep_previous_s": 3600} | more
    judge = JudgeSettings(accept_unproven=True)
    return Plan(steps=steps, approval_at=approval_at or steps[-1].weight, judge=judge, **times)


ONE_STEP = quick_plan(50)
"""For tests that look at the way and not at its steps."""


class Said(msgspec.Struct, frozen=True):
    """A judgement, or a memory plan, as a test puts it into its author's mouth."""

    outcome: str
    words: str = "Because the test says so."


@dataclass
class World:
    """What a rollout lives in. ``judgement``, ``samples`` and ``fit`` are what is said of it."""

    deployment: Deployment
    stable: ModelVersion
    candidate: ModelVersion
    judgement: Said = field(default_factory=lambda: Said("pass"))
    samples: int = 100
    fit: Said = field(default_factory=lambda: Said("co_resident"))
    report_numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def install(self, monkeypatch) -> "World":
        """Let the machine hear what this world says, and believe its fleet however slow the tests are."""
        monkeypatch.setattr(observation, "HEARD_WITHIN", timedelta(hours=1))
        monkeypatch.setattr(observation, "judged", lambda rollout, view: (self.judgement, self.samples))
        monkeypatch.setattr(observation, "planned", lambda rollout: self.fit)
        return self

    def report(self, candidate: ReplicaState | None, *, stable: ReplicaState = ReplicaState.READY, restarts=0) -> None:
        """Let the fleet say in which state a replica of each version is; None: the candidate has none."""
        states = {self.stable.id: stable} | ({self.candidate.id: candidate} if candidate else {})
        rows = tuple(
            ReplicaReport(
                replica_id=f"rep_{version_id}", node=f"n_{self.deployment.id}", state=state,
                cause="a bad file" if version_id == self.candidate.id and restarts else "attached", since_ms=1,
                socket="/run/x", deployment_id=self.deployment.id, version_id=version_id,
                restarts=restarts if version_id == self.candidate.id else 0,
            )
            for version_id, state in states.items()
        )  # fmt: skip
        number = next(self.report_numbers)
        table = ReplicaTable(
            node=f"n_{self.deployment.id}", number=number, at_ms=int(timezone.now().timestamp() * 1000), replicas=rows
        )
        report_replicas(actor=PLATFORM, report=FleetReport(table=table, events=()))

    def arms(self) -> dict[str, tuple[str, int, str]]:
        """The deployment's arms by name: whose they are, weight and hold."""
        names = {self.stable.id: "old", self.candidate.id: "new"}
        with acting_as(PLATFORM):
            rows = DeploymentArm.objects.filter(deployment=self.deployment)
            return {row.name: (names[row.version_id], row.weight, row.hold) for row in rows}


def make_world(tenant: Tenant, name: str = "chat", **settings: object) -> World:
    """Deploy a version of ``tenant`` that is READY, beside another version of its model."""
    stable, candidate = make_version(tenant), make_version(tenant)
    world = World(deploy(tenant, name=name, version=stable, **settings), stable, candidate)
    publish()
    world.report(ReplicaState.READY)
    return world


def publish() -> None:
    """Tell the data plane everything."""
    with acting_as(PLATFORM):
        OutboxEvent.objects.filter(published_at=None).update(published_at=timezone.now())


def stored(rollout: Rollout) -> Rollout:
    with acting_as(PLATFORM):
        return Rollout.objects.select_related("tenant", "deployment").get(pk=rollout.pk)


def change(rollout: Rollout, **fields: object) -> None:
    """Change the row behind the machine's back, as time does."""
    with acting_as(PLATFORM):
        Rollout.objects.filter(pk=rollout.pk).update(**fields)


def journal(rollout: Rollout) -> list[RolloutEvent]:
    with acting_as(PLATFORM):
        return list(RolloutEvent.objects.filter(rollout=rollout).order_by("sequence"))


def path(rollout: Rollout) -> list[tuple[str, int]]:
    """The states that the rollout has been through, each with its step."""
    return [(event.new, event.step) for event in journal(rollout)]


def step(rollout: Rollout) -> RolloutState | None:
    """Tell the data plane everything, then let the machine look once."""
    publish()
    return services.advance(rollout_id=rollout.id, revision=stored(rollout).revision)


def walk(rollout: Rollout, *until: str, at_most: int = 60) -> Rollout:
    """Let the machine look until the rollout is in one of these states, or nothing happens any more."""
    for _ in range(at_most):
        found = stored(rollout)
        if found.state in until or step(rollout) is None:
            break
    return stored(rollout)


def begun(world: World, actor: Actor | None = None, plan: Plan | None = None) -> Rollout:
    """Draft and start a rollout to the candidate."""
    author = actor or system_actor("tests", world.deployment.tenant)
    rollout = services.create_rollout(
        actor=author, deployment_id=world.deployment.id, candidate_version_id=world.candidate.id,
        plan=plan or quick_plan(),
    )  # fmt: skip
    return services.start_rollout(actor=author, rollout_id=rollout.id, expected_revision=rollout.revision)


def approve(actor: Actor, rollout: Rollout, **changed: object) -> Rollout:
    """Approve what waits, as it is, but for what is changed."""
    said = {
        "rollout_id": rollout.id, "expected_revision": rollout.revision, "digest": rollout.candidate_digest,
        "step": rollout.step, "waivers": WAIVERS,
    }  # fmt: skip
    return services.approve_rollout(actor=actor, **(said | changed))
