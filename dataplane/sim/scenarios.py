"""What goes wrong between tenants without care, each as a scenario.

Lengths are in ticks: a step of eight rows, whatever the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from dataplane.contracts.catalog import Share
from dataplane.sim.callers import (
    Aborter,
    Arrivals,
    Backlog,
    Caller,
    Newcomers,
    OneAtATime,
    Request,
    drawer,
    evenly,
    steadily,
)
from dataplane.sim.costs import StepCosts
from dataplane.sim.promises import (
    Promise,
    even_shares,
    first_token,
    first_tokens,
    forgets,
    front,
    gap,
    guarantees,
    no_preemption,
    recompute,
    share,
    throughput,
    what_it_asks,
)
from dataplane.sim.scenario import Scenario, capacity, tick_s
from dataplane.sim.sharing import Setup

_PREFILL = Request(48, 8)
"""What gives a tenant much service in little time."""
_CHAT = Request((8, 48), (4, 24))
_RETRIEVAL = Request((40, 120), (4, 12))
_FLOODED_TOKENS = 1280
_Arrivals = Callable[[float, float, Random], Iterator[float]]


@dataclass(frozen=True)
class Scale:
    """How long scenarios are.

    Attributes:
        costs: of the model.
        length: 1 is what they are meant to be.
    """

    costs: StepCosts
    length: float = 1.0

    def seconds(self, ticks: float) -> float:
        """Return how long so many ticks of a scenario take."""
        return ticks * tick_s(self.costs) * self.length

    def scenario(
        self,
        name: str,
        says: str,
        ticks: float,
        callers: Callable[[float], Sequence[Caller]],
        promises: Sequence[Promise],
        *,
        shares: Mapping[str, Share] | None = None,
        **settings: Any,
    ) -> Scenario:
        """Return a scenario; ``callers`` is told how many seconds it has."""
        seconds = self.seconds(ticks)
        return Scenario(name, says, Setup(lambda seed: callers(seconds), seconds, shares or {}, settings), promises)


def scenarios(scale: Scale) -> list[Scenario]:
    """Return all of them."""
    return [make(scale) for make in _ALL]


def weights(scale: Scale) -> Scenario:
    """Four tenants with something waiting always."""
    parts = {"a": 1, "b": 2, "c": 3, "d": 4}
    return scale.scenario(
        "weights 1:2:3:4",
        "four tenants always have requests waiting",
        3000,
        lambda seconds: [Backlog(name, _CHAT) for name in parts],
        [even_shares(*parts), gap(), throughput()],
        shares={name: Share(weight=weight) for name, weight in parts.items()},
    )


def hoarder(scale: Scale) -> Scenario:
    """Credit from running alone."""
    return scale.scenario(
        "hoarder",
        "a tenant keeps one request alive, and then sends many: the time before must not be credit",
        1400,
        lambda seconds: [
            Backlog("busy", _PREFILL),
            OneAtATime("hoarder", Request(8, 200), until_s=seconds / 2),
            Backlog("hoarder", _PREFILL, from_s=seconds / 2),
        ],
        [gap(), throughput()],
    )


def tiny_and_huge(scale: Scale) -> Scenario:
    """Requests of eighty times another's size."""
    return scale.scenario(
        "tiny and huge",
        "one tenant sends tiny requests, many at a time, the other huge ones",
        3000,
        lambda seconds: [Backlog("tiny", Request(4, 2), depth=8), Backlog("huge", Request(200, 60), depth=2)],
        [even_shares("tiny", "huge"), gap(), throughput()],
        num_blocks=300,
    )


def churn(scale: Scale) -> Scenario:
    """A thousand strangers."""
    interval_s = 5 * tick_s(scale.costs)
    return scale.scenario(
        "churn of 1,000 tenants",
        "a thousand strangers come one after another, beside a tenant of large requests",
        5000,
        lambda seconds: [Newcomers(Request(16, 16), interval_s), Backlog("large", Request(200, 50), depth=1)],
        [front("large", 200), forgets(50), throughput()],
    )


def guaranteed_tiny(scale: Scale) -> Scenario:
    """A guarantee must not change the order."""
    return scale.scenario(
        "guarantee with tiny requests",
        "a tenant with a guarantee sends tiny requests: memory is guaranteed to it, compute is not",
        2000,
        lambda seconds: [Backlog("tiny", Request(8, 4), depth=16), Backlog("other", Request(40, 40))],
        [even_shares("tiny", "other"), gap(), throughput()],
        shares={"tiny": Share(guarantee_tokens=320)},
    )


def growth(scale: Scale) -> Scenario:
    """Running out of memory is collective."""
    names = ("a", "b", "c", "d")
    return scale.scenario(
        "growth without guarantees",
        "four tenants' answers grow until the pool is full: somebody must give way, and nobody may stall",
        2500,
        lambda seconds: [Backlog(name, Request(8, 80), depth=2) for name in names],
        [even_shares(*names, within=0.1), gap()],
        num_blocks=48,
    )


def idle_cache(scale: Scale) -> Scenario:
    """A cache is nobody's guarantee."""
    return scale.scenario(
        "an idle tenant's cache fills the pool",
        "a tenant with a guarantee leaves the pool full of its cache; another needs the blocks",
        1000,
        lambda seconds: [
            Arrivals("idle", Request(40, 8), [0.0] * 20),
            Backlog("busy", Request(120, 20), depth=3, from_s=seconds / 2),
        ],
        [no_preemption(), front("busy", 60), throughput()],
        shares={"idle": Share(guarantee_tokens=480)},
        prefix_cache=True,
    )


def capped_credit(scale: Scale) -> Scenario:
    """Credit from standing before one's own cap."""
    return scale.scenario(
        "credit behind a cap",
        "a tenant waits for its own cap, and then sends what passes it: the time before must not be credit",
        1800,
        lambda seconds: [
            Backlog("capped", Request(32, 32), depth=2, until_s=seconds / 2),
            Backlog("capped", Request(4, 1), depth=24, from_s=seconds / 2),
            Backlog("busy", _PREFILL),
        ],
        [gap(), throughput()],
        shares={"capped": Share(cap_tokens=80)},
    )


def newcomer_beside_capped(scale: Scale) -> Scenario:
    """A tenant before its cap must not pin the virtual time."""
    return scale.scenario(
        "newcomer beside a capped tenant",
        "a tenant comes while another waits for its own cap: it must not begin as far back as that one is",
        1500,
        lambda seconds: [
            Backlog("capped", Request(32, 32), depth=2),
            Backlog("old", _PREFILL),
            Backlog("new", _PREFILL, from_s=seconds / 2),
        ],
        [gap()],
        shares={"capped": Share(cap_tokens=80)},
    )


def cheap_prefixes(scale: Scale) -> Scenario:
    """What is cached costs little and holds blocks."""
    return scale.scenario(
        "cheap prefixes",
        "one tenant's prompts are cached but for their ends, the other's are not",
        2000,
        lambda seconds: [Backlog("cheap", Request(201, 8, common_tokens=200)), Backlog("other", Request(60, 24))],
        [even_shares("cheap", "other", within=0.1), gap()],
        num_blocks=120,
        prefix_cache=True,
    )


def odd_prompts(scale: Scale) -> Scenario:
    """Within a tenant, whoever has no cached prefix waits behind all who have."""
    return scale.scenario(
        "odd prompts among cached ones",
        "a tenant's prompts are cached, now and then one is not: it must not wait for all others",
        1500,
        lambda seconds: [
            Backlog("mixed", Request(121, 8, common_tokens=120), depth=16),
            Arrivals("mixed", Request(40, 8), evenly(lambda _: 8 / seconds, seconds)),
            Backlog("other", Request(60, 24)),
        ],
        [first_token("mixed", 250 * tick_s(scale.costs)), even_shares("mixed", "other", within=0.1), gap()],
        num_blocks=120,
        prefix_cache=True,
    )


def short_and_long(scale: Scale) -> Scenario:
    """Long answers hold the slots."""
    per_s = 0.1 / tick_s(scale.costs)
    return scale.scenario(
        "short and long",
        "one tenant sends chats, another essays that hold all slots for long",
        2000,
        lambda seconds: [
            Arrivals("chats", Request(16, 8), evenly(lambda _: per_s, seconds)),
            Backlog("essays", Request(16, 150)),
        ],
        [front("chats", 40), what_it_asks("chats"), gap()],
        shares={"chats": Share(guarantee_tokens=160)},
        num_blocks=200,
    )


def collusion(scale: Scale) -> Scenario:
    """One borrows and one reclaims, again and again."""
    return scale.scenario(
        "recompute collusion",
        "one tenant borrows what another reclaims, so that a third waits for what is computed again",
        2000,
        lambda seconds: [
            Backlog("guaranteed", Request(250, 4), depth=3),
            Backlog("borrower", Request(300, 100), depth=3),
            Backlog("victim", Request(24, 24), depth=3),
        ],
        [recompute(), share("victim", 0.3), guarantees()],
        shares={"guaranteed": Share(guarantee_tokens=320)},
    )


def abort_storm(scale: Scale) -> Scenario:
    """Reclaims that cost nothing."""
    return scale.scenario(
        "abort storm",
        "a tenant reclaims its guarantee with large prompts and aborts each as soon as it runs",
        2000,
        lambda seconds: [Aborter("attacker", Request(380, 16)), Backlog("victim", Request(48, 32), depth=6)],
        [recompute(), share("victim", 0.45), guarantees()],
        shares={"attacker": Share(guarantee_tokens=400)},
    )


def all_guaranteed(scale: Scale) -> Scenario:
    """Guarantees of the whole pool."""
    names = ("a", "b", "c")
    return scale.scenario(
        "guarantees of 100 %",
        "three tenants are guaranteed nearly all of the pool; a guest has no guarantee and must not starve",
        2500,
        lambda seconds: [Backlog(name, Request(32, 40), depth=3) for name in (*names, "guest")],
        [even_shares(*names, within=0.1), share("guest", 0.01), guarantees()],
        shares={name: Share(guarantee_tokens=208) for name in names},
    )


def slots_full(scale: Scale) -> Scenario:
    """Memory is of no use without a slot."""
    return scale.scenario(
        "slots full",
        "long requests of one tenant hold every slot; another has a guarantee",
        1500,
        lambda seconds: [
            Backlog("other", Request(8, 150), depth=20),
            Arrivals("guaranteed", Request(8, 8), evenly(lambda _: 12 / seconds, seconds)),
        ],
        [front("guaranteed", 40), gap()],
        shares={"guaranteed": Share(guarantee_tokens=80)},
        num_blocks=200,
    )


def flood(scale: Scale, times: float = 10.0, request: Request = _RETRIEVAL, arrivals: _Arrivals = steadily) -> Scenario:
    """One at so many times its share, three at 0.8 of theirs; each may have half of the pool and is sure of a fifth."""
    settings = {"num_blocks": _FLOODED_TOKENS // 8, "max_num_seqs": 16}
    per_s = capacity(request, scale.costs, **settings)
    seconds = scale.seconds(3000)
    victims = ("alice", "bob", "carol")
    share_of_pool = Share(guarantee_tokens=_FLOODED_TOKENS // 5, cap_tokens=_FLOODED_TOKENS // 2)

    def callers(seed: int) -> list[Caller]:
        calls: list[Caller] = [
            Arrivals(name, request, list(arrivals(0.8 * per_s / 4, seconds, drawer(seed, f"{name} calls"))))
            for name in victims
        ]
        return [*calls, Arrivals("flood", request, evenly(lambda _: times * per_s / 4, seconds))]

    return Scenario(
        "flood",
        f"four tenants: three send 0.8 of their share, the last {times:g} times its own",
        Setup(callers, seconds, dict.fromkeys((*victims, "flood"), share_of_pool), settings),
        [first_tokens(*victims), *(what_it_asks(name) for name in victims), gap(), throughput()],
        victims,
    )


_ALL = (
    weights,
    hoarder,
    tiny_and_huge,
    churn,
    guaranteed_tiny,
    growth,
    idle_cache,
    capped_credit,
    newcomer_beside_capped,
    cheap_prefixes,
    odd_prompts,
    short_and_long,
    collusion,
    abort_storm,
    all_guaranteed,
    slots_full,
    flood,
)
