"""What is under way, read once for a request: the badges of the navigation and the first page ask for the same."""

from django.http import HttpRequest

from controlplane.rollouts.series import InFlight, list_in_flight
from controlplane.rollouts.states import RolloutState
from tenants.actor import Actor


def in_flight(request: HttpRequest, actor: Actor) -> list[InFlight]:
    """Return the rollouts that are not over: of the actor's tenant, or for the platform of all."""
    known: dict[str, list[InFlight]] = request.__dict__.setdefault("_in_flight", {})
    whose = "" if actor.home is None else actor.home.slug
    if whose not in known:
        known[whose] = list_in_flight(actor=actor)
    return known[whose]


def num_waiting(request: HttpRequest, actor: Actor) -> int:
    """Return how many of them wait for somebody who approves."""
    return sum(each.state is RolloutState.AWAITING_APPROVAL for each in in_flight(request, actor))
