"""Choices of the rule that could have gone another way, each beside its alternatives."""

from collections.abc import Sequence
from dataclasses import dataclass

from dataplane.contracts.catalog import Share
from dataplane.sim.callers import Arrivals, Backlog, OneAtATime, Request, evenly, poisson
from dataplane.sim.policies import (
    EVERYBODY_PASSES,
    NEVER_RECLAIMS,
    NOBODY_PASSES,
    OURS,
    PASSED_AT_THE_CAP,
    WITHOUT_CREDIT,
    WITHOUT_LIFT,
    Policy,
    returning_with,
)
from dataplane.sim.promises import front, gap, recompute, share, throughput, what_it_asks
from dataplane.sim.scenario import Scenario
from dataplane.sim.scenarios import Scale, abort_storm, flood


@dataclass(frozen=True)
class Question:
    """A choice.

    Attributes:
        asks: what is to be decided.
        scenario: what decides it.
        policies: the answers; the engine's is the first.
    """

    asks: str
    scenario: Scenario
    policies: Sequence[Policy]


def questions(scale: Scale) -> list[Question]:
    """Return all of them."""
    passing = (OURS, NOBODY_PASSES, EVERYBODY_PASSES)
    returns = (OURS, *(returning_with(steps) for steps in (0, 2, 4, 8)), WITHOUT_LIFT)
    return [
        Question("How long may others pass a head that found no memory?", blocked_head(scale), passing),
        Question(
            "And what does passing give to one who reclaims and aborts?",
            abort_storm(scale),
            (*passing, WITHOUT_CREDIT),
        ),
        Question(
            "How often may a guarantee be taken back from a giant that runs?",
            giant_borrower(scale),
            (OURS, WITHOUT_CREDIT, NEVER_RECLAIMS),
        ),
        Question("What may a tenant keep of its turns that was away for a moment?", flood(scale), returns),
        Question("And where it comes by a Poisson process?", flood(scale, arrivals=poisson), returns),
        Question("And where it waits for a slot?", flood(scale, request=Request((16, 56), (8, 24))), returns),
        Question(
            "May a tenant's own requests pass one that its cap stops?", capped_head(scale), (OURS, PASSED_AT_THE_CAP)
        ),
    ]


def blocked_head(scale: Scale) -> Scenario:
    """Large prompts beside two tenants that fill the pool with middling ones."""
    return scale.scenario(
        "blocked head",
        "one tenant's prompts need half of the pool, two others fill it with middling ones",
        4000,
        lambda seconds: [
            Backlog("long", Request(16, 100), depth=12),
            Backlog("short", Request(16, 40), depth=12),
            Backlog("large", Request(500, 8), depth=2),
        ],
        [gap(), front("large", 600), share("large", 0.1), throughput()],
        num_blocks=120,
        max_num_seqs=16,
    )


def giant_borrower(scale: Scale) -> Scenario:
    """Nearly all of the pool is borrowed by one request that has run for long."""
    return scale.scenario(
        "giant borrower",
        "one request holds most of the pool, borrowed; a tenant with a guarantee asks for its own again and again",
        3000,
        lambda seconds: [
            OneAtATime("giant", Request(300, 100)),
            Arrivals("guaranteed", Request(300, 4), evenly(lambda _: 40 / seconds, seconds)),
        ],
        [recompute(), front("guaranteed", 250), what_it_asks("guaranteed")],
        shares={"guaranteed": Share(guarantee_tokens=320)},
    )


def capped_head(scale: Scale) -> Scenario:
    """A request of most of its tenant's cap, among small ones."""
    return scale.scenario(
        "capped head",
        "a tenant's small requests keep its cap full; now and then it sends one that needs most of the cap",
        2500,
        lambda seconds: [
            Backlog("capped", Request(16, 16), depth=6),
            Arrivals("capped", Request(100, 20), evenly(lambda _: 10 / seconds, seconds)),
            Backlog("other", Request(16, 32)),
        ],
        [front("capped", 40), gap()],
        shares={"capped": Share(cap_tokens=160)},
    )
