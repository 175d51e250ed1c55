"""Two replicas of a version: what one serves counts at the other, up to a debt."""

from fairness_simulation import Simulation

from dataplane.contracts.catalog import Share

SHARES = {"both": Share(), "one": Share()}


class Pair:
    """Two engines; ``both`` calls at either, ``one`` at the first alone. They tell each other every so many steps."""

    def __init__(self) -> None:
        self.replicas = [
            Simulation(SHARES, num_blocks=400, max_num_seqs=8, step_token_budget=64, seed=seed) for seed in (1, 2)
        ]
        self.told: list[dict[str, float]] = [{}, {}]

    def run(self, steps: int, *, exchange_every: int) -> None:
        for step in range(steps):
            self.replicas[0].run(1, lambda _: self.backlog(self.replicas[0], "both", "one"))
            self.replicas[1].run(1, lambda _: self.backlog(self.replicas[1], "both"))
            if exchange_every and step % exchange_every == 0:
                self.exchange()

    def backlog(self, replica: Simulation, *tenants: str) -> None:
        for tenant_id in tenants:
            replica.backlog(tenant_id, 3, (8, 60), (8, 40))

    def exchange(self) -> None:
        for replica, other in ((0, 1), (1, 0)):
            served = {load.tenant_id: load.served_units for load in self.replicas[other].driver.engine.tenant_loads()}
            news = {tenant_id: units - self.told[other].get(tenant_id, 0.0) for tenant_id, units in served.items()}
            self.replicas[replica].driver.engine.add_service(news)
        for other in (0, 1):
            loads = self.replicas[other].driver.engine.tenant_loads()
            self.told[other] = {load.tenant_id: load.served_units for load in loads}

    def service(self, tenant_id: str) -> float:
        return sum(replica.service.get(tenant_id, 0.0) for replica in self.replicas)


def test_who_calls_two_replicas_gets_no_more_than_who_calls_one() -> None:
    told, untold = Pair(), Pair()
    told.run(600, exchange_every=20)
    untold.run(600, exchange_every=0)
    assert 0.85 < told.service("one") / told.service("both") < 1.1
    assert untold.service("one") / untold.service("both") < 0.5


def test_who_has_lost_a_replica_is_served_at_the_other_once_its_debt_is_worked_off() -> None:
    pair = Pair()
    pair.run(300, exchange_every=20)
    left = pair.replicas[0]
    before = dict(left.service)
    debt_units = left.driver.config.service_debt_units

    while left.service["both"] < before["both"] + 2 * debt_units:
        left.run(1, lambda _: pair.backlog(left, "both", "one"))
        ahead = left.service["one"] - left.service["both"] - (before["one"] - before["both"])
        assert ahead <= debt_units + left.bound(left.driver.tenant("one")), "it starves"
