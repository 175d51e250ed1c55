"""What the fleet tells its replicas of shares and service: the pass in which it hears is the pass in which it tells."""

from dataclasses import dataclass, field
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from dataplane.contracts.catalog import Arm, DeploymentEntry, EngineSettings, Share
from dataplane.contracts.generation import EngineLoad, TenantLoad
from dataplane.contracts.replica import ReplicaState, SetShares, Status
from dataplane.fleet.plan import Assignment
from dataplane.fleet.replica import Replica
from dataplane.fleet.shares import Sharing, salt_secret

S = ReplicaState
LOAD = EngineLoad(0, 0, 0, 100, 100, 0, 0, 8, 0, 0, 0, 0, 0)
CHAT = Assignment("dep_chat", "ver_1", "d" * 64, "acme", "chat", EngineSettings())


def deployments(**shares: Share) -> dict[str, DeploymentEntry]:
    entry = DeploymentEntry("dep_chat", "acme", "chat", True, (Arm("ver_1", 100),), shares, EngineSettings())
    return {"dep_chat": entry}


@dataclass
class ReplicaDouble:
    """What sharing knows of a replica; it confirms what it is told when the test says so."""

    replica_id: str
    assignment: Assignment = CHAT
    state: ReplicaState = S.READY
    status: Status | None = None
    takes_shares: bool = True
    takes_service: bool = True
    shares_lost: bool = False
    told_service: dict[str, float] = field(default_factory=dict)
    told: list[SetShares] = field(default_factory=list)
    told_units: list[dict[str, float]] = field(default_factory=list)
    served: dict[str, float] = field(default_factory=dict)
    owned: dict[str, int] = field(default_factory=dict)

    def set_shares(self, message: SetShares) -> None:
        self.told.append(message)

    def add_service(self, units: dict[str, float]) -> None:
        self.told_units.append(units)

    def says(self) -> None:
        """Report what it was told last as in force."""
        newest = self.told[-1]
        tenants = [
            TenantLoad(
                id_, lease.guarantee_blocks, LOAD.total_blocks if lease.cap_blocks is None else lease.cap_blocks, 1,
                self.owned.get(id_, 0), 0, 0, 0, 0.0, served_units=self.served.get(id_, 0.0),
            )
            for id_, lease in newest.leases.items()
        ]  # fmt: skip
        self.status = Status(
            self.replica_id, self.state, 0, 0, "", context_tokens=80, load=LOAD, tenants=tenants,
            shares_number=newest.number,
        )  # fmt: skip


def pair(sharing: Sharing, entries: dict[str, DeploymentEntry], *assignments: Assignment) -> list[ReplicaDouble]:
    """Two replicas that hold what they began with."""
    both = []
    for number, assignment in enumerate(assignments or (CHAT, CHAT)):
        replica = ReplicaDouble(f"r{number}", assignment)
        leases = sharing.begin(replica.replica_id, assignment, entries["dep_chat"], 2)
        replica.told.append(SetShares(entries["dep_chat"].grants, leases))
        replica.says()
        both.append(replica)
    return both


def round_(sharing: Sharing, entries: dict[str, DeploymentEntry], replicas: list[ReplicaDouble]) -> None:
    sharing.round(entries, [cast(Replica, replica) for replica in replicas])


def caps(replicas: list[ReplicaDouble]) -> list[int | None]:
    return [replica.told[-1].leases["acme"].cap_blocks for replica in replicas]


def test_a_lowered_cap_is_told_to_every_replica_in_the_very_pass_that_sees_it() -> None:
    sharing, before = Sharing(), deployments(acme=Share(cap_tokens=640))
    both = pair(sharing, before)
    round_(sharing, before, both)
    assert caps(both) == [40, 40]
    round_(sharing, deployments(acme=Share(cap_tokens=160)), both)
    assert caps(both) == [10, 10]
    assert [replica.told[-1].tenants["acme"].cap_tokens for replica in both] == [160, 160]


def test_a_part_is_raised_in_the_pass_that_hears_another_is_lowered_and_not_before() -> None:
    sharing, entries = Sharing(), deployments(acme=Share(cap_tokens=640))
    both = here, there = pair(sharing, entries)
    here.owned["acme"] = 40
    here.says()
    round_(sharing, entries, both)
    assert len(here.told) == 1 or here.told[-1].leases["acme"].cap_blocks == 40
    busy = TenantLoad("acme", 0, 40, 1, 40, 0, 2, 1, 0.0, head_tokens=80)
    here.status = Status("r0", S.READY, 0, 0, "", load=LOAD, tenants=[busy], shares_number=here.told[-1].number)
    round_(sharing, entries, both)
    lowered = there.told[-1].leases["acme"].cap_blocks
    assert lowered is not None
    assert lowered < 40
    round_(sharing, entries, both)
    assert here.told[-1].leases["acme"].cap_blocks == 40, "the other has not said that it gave anything up"
    there.says()
    round_(sharing, entries, both)
    assert here.told[-1].leases["acme"].cap_blocks == 80 - lowered


def test_what_may_not_have_arrived_is_told_again_and_nothing_while_an_answer_is_awaited() -> None:
    sharing, entries = Sharing(), deployments(acme=Share(cap_tokens=160))
    both = here, _ = pair(sharing, entries)
    round_(sharing, entries, both)
    assert [len(replica.told) for replica in both] == [1, 1]
    here.shares_lost = True
    round_(sharing, entries, both)
    assert len(here.told) == 2
    here.takes_shares = False
    round_(sharing, entries, both)
    assert len(here.told) == 2


def test_every_version_has_a_share_whole() -> None:
    sharing, entries = Sharing(), deployments(acme=Share(cap_tokens=160))
    candidate = Assignment("dep_chat", "ver_2", "e" * 64, "acme", "chat", EngineSettings())
    both = pair(sharing, entries, CHAT, candidate)
    round_(sharing, entries, both)
    assert caps(both) == [20, 20]


def test_replicas_of_what_is_no_longer_served_keep_what_they_hold() -> None:
    sharing, entries = Sharing(), deployments(acme=Share(cap_tokens=160))
    both = pair(sharing, entries)
    round_(sharing, {}, both)
    assert [len(replica.told) for replica in both] == [1, 1]


def test_each_ready_replica_is_told_what_the_others_served_until_it_has_taken_it() -> None:
    sharing, entries = Sharing(), deployments(acme=Share(), evil=Share())
    both = here, there = pair(sharing, entries)
    here.served = {"acme": 30.0, "stranger": 9.0}
    here.says()
    round_(sharing, entries, both)
    assert (here.told_units, there.told_units) == ([], [{"acme": 30.0}])
    round_(sharing, entries, both)
    assert there.told_units == [{"acme": 30.0}] * 2
    there.told_service = {"acme": 30.0}
    round_(sharing, entries, both)
    assert len(there.told_units) == 2
    here.served["acme"] = 50.0
    here.says()
    there.takes_service = False
    round_(sharing, entries, both)
    there.takes_service, there.state = True, S.ASLEEP
    round_(sharing, entries, both)
    assert len(there.told_units) == 2
    there.state = S.READY
    round_(sharing, entries, both)
    assert there.told_units[-1] == {"acme": 50.0}


@given(st.binary(min_size=32, max_size=32), st.text(), st.text())
def test_each_version_has_its_own_salt_secret(secret: bytes, one: str, two: str) -> None:
    assert (salt_secret(secret, one) == salt_secret(secret, two)) == (one == two)
    assert secret not in salt_secret(secret, one)
