"""The synthetic suites of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), scaled to our model.

The paper gives requests a minute on its machine, which serves some ninety of 256 + 256 tokens; here all rates are parts
of what the engine serves of requests an eighth as long.
"""

from collections.abc import Callable

from dataplane.sim.callers import Arrivals, Request, drawer, evenly, poisson
from dataplane.sim.costs import StepCosts
from dataplane.sim.promises import even_shares, gap, throughput, what_it_asks
from dataplane.sim.scenario import Scenario, capacity
from dataplane.sim.sharing import Setup

_REQUEST = Request(32, 32)
_SHORT = Request(8, 8)

_Part = Callable[[float], float]
"""A rate as a part of the capacity, at a part of the run."""


def suites(costs: StepCosts, requests: int) -> list[Scenario]:
    """Return the suites, each as long as serving so many requests takes."""
    per_s = capacity(_REQUEST, costs)
    seconds = requests / per_s

    def setup(**parts: _Part) -> Setup:
        def rate(part: _Part) -> Callable[[float], float]:
            return lambda now_s: per_s * part(now_s / seconds)

        return Setup(
            lambda seed: [Arrivals(name, _REQUEST, evenly(rate(part), seconds)) for name, part in parts.items()],
            seconds,
        )

    return [
        Scenario(
            "overload",
            "two tenants send more than their halves, one of them twice as much as the other",
            setup(one=_always(0.9), two=_always(1.9)),
            [gap(), even_shares("one", "two"), throughput()],
        ),
        Scenario(
            "proportional",
            "two of three tenants send less than a third, the last takes what they leave",
            setup(one=_always(0.15), two=_always(0.3), three=_always(0.95)),
            [gap(), what_it_asks("one"), what_it_asks("two"), throughput()],
        ),
        Scenario(
            "on and off",
            "one tenant sends less than its half, now and then; the other takes what it leaves",
            setup(one=_on_off(0.3, 5), two=_always(1.25)),
            [gap(), what_it_asks("one"), throughput()],
        ),
        Scenario(
            "on and off, overload",
            "one tenant sends more than its half, now and then; the other always",
            setup(one=_on_off(1.25, 2), two=_always(1.9)),
            [gap(), throughput()],
        ),
        _short_and_long(per_s, seconds),
        Scenario(
            "increasing",
            "one tenant sends less than its half, the other more and more",
            setup(one=_always(0.3), two=lambda part: 0.12 + 1.78 * part),
            [gap(), what_it_asks("one"), throughput()],
        ),
        Scenario(
            "distribution shift",
            "on and off at first, then both more than their halves, then one less and one more",
            setup(
                one=_in_thirds(_on_off(0.3, 9), _always(0.6), _always(0.3)),
                two=_in_thirds(_always(1.25), _always(0.6), _always(0.95)),
            ),
            [gap(), what_it_asks("one"), throughput()],
        ),
    ]


def _short_and_long(per_s: float, seconds: float) -> Scenario:
    """Short requests come 5.3 times as often as those of four times the length, all by a Poisson process."""
    per_long_s = 2 * per_s * 3 / 7
    per_short_s = per_long_s * 8 / 1.5

    def callers(seed: int) -> list[Arrivals]:
        return [
            Arrivals("short", _SHORT, list(poisson(per_short_s, seconds, drawer(seed, "short calls")))),
            Arrivals("long", _REQUEST, list(poisson(per_long_s, seconds, drawer(seed, "long calls")))),
        ]

    return Scenario(
        "Poisson, short and long",
        "one tenant sends many short requests, the other few long ones, both more than their halves",
        Setup(callers, seconds),
        [gap(), even_shares("short", "long"), throughput()],
    )


def _always(part: float) -> _Part:
    return lambda _: part


def _on_off(part: float, times: int) -> _Part:
    return lambda now: part if int(now * 2 * times) % 2 == 0 else 0.0


def _in_thirds(first: _Part, second: _Part, third: _Part) -> _Part:
    return lambda now: (first, second, third)[min(2, int(now * 3))](now)
