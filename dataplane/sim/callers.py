"""Who calls, and how: each caller is asked before every step, and speaks to the site that serves it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Protocol

Size = int | tuple[int, int]
"""Tokens, or the least and the most of an even draw."""
STRANGERS = "newcomers"
"""The name under which tenants are booked that nobody has listed."""


class Site(Protocol):
    """What callers see of the engine."""

    now_s: float

    def draw(self, name: str) -> Random:
        """Return what ``name`` draws with: the same under every policy."""
        ...

    def submit(
        self,
        tenant_id: str,
        prompt_tokens: int,
        output_tokens: int,
        *,
        name: str,
        common_tokens: int = 0,
        called_s: float | None = None,
    ) -> bool:
        """Send a request, booked under ``name``; False if it is refused.

        ``common_tokens``: so its prompt begins, and every other of the tenant. ``called_s``: when it came, if not now.
        """
        ...

    def abort(self, tenant_id: str) -> None:
        """Abort what the tenant has running."""
        ...

    def num_waiting(self, tenant_id: str) -> int:
        """Return how many of the tenant's requests wait."""
        ...

    def num_running(self, tenant_id: str) -> int:
        """Return how many of the tenant's requests run."""
        ...


class Caller(Protocol):
    """Somebody who calls."""

    @property
    def tenant_id(self) -> str:
        """Who it is, and where its calls are booked."""
        ...

    def call(self, site: Site) -> None:
        """Send what is to be sent by now."""
        ...


@dataclass(frozen=True)
class Request:
    """What a caller sends.

    Attributes:
        prompt, output: sizes.
        common_tokens: leading tokens that all of the tenant's requests share.
    """

    prompt: Size
    output: Size
    common_tokens: int = 0

    def send(self, site: Site, tenant_id: str, *, name: str = "", called_s: float | None = None) -> bool:
        """Send one; False if it is refused."""
        draw = site.draw(name or tenant_id)
        prompt_tokens, output_tokens = _size(self.prompt, draw), _size(self.output, draw)
        return site.submit(
            tenant_id,
            prompt_tokens,
            output_tokens,
            name=name or tenant_id,
            common_tokens=self.common_tokens,
            called_s=called_s,
        )


class Arrivals:
    """Calls at given times, whatever becomes of those before.

    Args:
        tenant_id: who calls.
        request: what.
        times_s: when, in order.
    """

    def __init__(self, tenant_id: str, request: Request, times_s: Iterable[float]) -> None:
        self.tenant_id = tenant_id
        self._request = request
        self._times_s = iter(times_s)
        self._next_s = next(self._times_s, None)

    def call(self, site: Site) -> None:
        """Send all whose time has come."""
        while self._next_s is not None and self._next_s <= site.now_s:
            self._request.send(site, self.tenant_id, called_s=self._next_s)
            self._next_s = next(self._times_s, None)


@dataclass
class Backlog:
    """Keeps requests waiting, from a time on and until another."""

    tenant_id: str
    request: Request
    depth: int = 4
    from_s: float = 0.0
    until_s: float = float("inf")

    def call(self, site: Site) -> None:
        """Fill the line."""
        if self.from_s <= site.now_s < self.until_s:
            while site.num_waiting(self.tenant_id) < self.depth and self.request.send(site, self.tenant_id):
                pass


@dataclass
class OneAtATime:
    """Keeps one request alive, until a time."""

    tenant_id: str
    request: Request
    until_s: float = float("inf")

    def call(self, site: Site) -> None:
        """Send the next when the last has ended."""
        busy = site.num_running(self.tenant_id) or site.num_waiting(self.tenant_id)
        if not busy and site.now_s < self.until_s:
            self.request.send(site, self.tenant_id)


@dataclass
class Aborter:
    """Sends one request after another and aborts each as soon as it runs."""

    tenant_id: str
    request: Request

    def call(self, site: Site) -> None:
        """Abort what runs, and send the next."""
        site.abort(self.tenant_id)
        if not site.num_waiting(self.tenant_id):
            self.request.send(site, self.tenant_id)


@dataclass
class Newcomers:
    """Strangers who come one after another, each with one request and never again."""

    request: Request
    interval_s: float
    tenant_id: str = STRANGERS
    _numbers: Iterator[int] = field(default_factory=count)
    _next_s: float = 0.0

    def call(self, site: Site) -> None:
        """Send those who have come by now."""
        while self._next_s <= site.now_s:
            stranger = f"newcomer{next(self._numbers)}"
            self.request.send(site, stranger, name=self.tenant_id, called_s=self._next_s)
            self._next_s += self.interval_s


def evenly(rate: Callable[[float], float], until_s: float) -> Iterator[float]:
    """Yield times as far apart as ``rate`` says, in calls a second at a time; where it is 0, there are none."""
    now_s = 0.0
    while now_s < until_s:
        per_s = rate(now_s)
        if per_s > 0:
            yield now_s
        now_s += 1 / per_s if per_s > 0 else until_s / 200


def steadily(per_s: float, until_s: float, draw: Random) -> Iterator[float]:
    """Yield times half a gap to one and a half apart."""
    now_s = draw.random() / per_s
    while now_s < until_s:
        yield now_s
        now_s += draw.uniform(0.5, 1.5) / per_s


def poisson(per_s: float, until_s: float, draw: Random) -> Iterator[float]:
    """Yield the times of a Poisson process."""
    now_s = draw.expovariate(per_s)
    while now_s < until_s:
        yield now_s
        now_s += draw.expovariate(per_s)


def drawer(seed: int, name: str) -> Random:
    """Return a source of chance of its own for each name."""
    return Random(f"{seed}:{name}")  # noqa: S311 - to be repeatable is the point


def _size(size: Size, draw: Random) -> int:
    return size if isinstance(size, int) else draw.randint(*size)
