"""One gateway's limiter in a process of its own, told line by line what its callers do and what time it is.

``{"do": "ask", "now_ms": T, "callers": [[tokens, ...], ...]}``: each caller reserves its amounts one after the other
until one is refused; all callers at once. ``{"do": "settle", "now_ms": T, "used": [tokens, ...]}``: ends as many of the
running requests, oldest first. Each line is answered by one.
"""

import asyncio
import json
import sys

from dataplane.contracts.catalog import Limits
from dataplane.gateway.limits import Limiter, LimitExceeded, Reservation
from dataplane.gateway.windows import Scope


class Gateway:
    def __init__(self, redis_url: str, gateway_id: str, tenant_id: str, limits: dict[str, int]) -> None:
        self.now_ms = 0
        self.id = gateway_id
        self.scopes = (Scope("tenant", tenant_id, tenant_id, Limits(**limits)),)
        self.running: list[Reservation] = []
        self.limiter = Limiter(
            redis_url, gateway_id, lease_ms=10**7, renewal_s=1.0, timeout_s=60.0, clock_ms=lambda: self.now_ms
        )
        self._count = 0

    async def ask(self, callers: list[list[int]]) -> dict[str, object]:
        """Return the amounts that passed and how many callers ended at a refusal."""
        before = len(self.running)
        refused = await asyncio.gather(*(self._call(amounts) for amounts in callers))
        assert not self.limiter.redis_away
        return {"passed": [reservation.tokens for reservation in self.running[before:]], "refused": sum(refused)}

    async def _call(self, amounts: list[int]) -> bool:
        for tokens in amounts:
            self._count += 1
            try:
                reservation = await self.limiter.reserve(f"{self.id}-{self._count}", self.scopes, tokens)
            except LimitExceeded:
                return True
            self.running.append(reservation)
        return False

    async def settle(self, used: list[int]) -> dict[str, object]:
        """Return what was reserved, and when, by those that end."""
        ending, self.running = self.running[: len(used)], self.running[len(used) :]
        await asyncio.gather(
            *(self.limiter.settle(reservation, tokens) for reservation, tokens in zip(ending, used, strict=True))
        )
        return {"settled": [[reservation.local_bucket, reservation.tokens] for reservation in ending]}


async def main() -> None:
    gateway = Gateway(**json.loads(sys.argv[1]))
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        gateway.now_ms = order["now_ms"]
        answer = await (gateway.ask(order["callers"]) if order["do"] == "ask" else gateway.settle(order["used"]))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await gateway.limiter.close()


if __name__ == "__main__":
    asyncio.run(main())
