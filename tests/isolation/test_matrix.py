"""Every route, every method, every persona: generated from the URLconf, judged by the table in ``matrix``."""

import pytest
from asking import METHODS, NO_LIMITS, ROUTES, ROWS, asking
from django.http import HttpResponse
from django.urls import reverse
from matrix import PERSONAS

REFUSED = (401, 403, 404, 405)
MIGHTIEST = ("nobody", "alice", "root", "akey", "proc")
"""Where a method has no row and so is refused, one of each way to come in: each with all that its way may do."""


@pytest.fixture(scope="module")
def asker(django_db_setup, django_db_blocker):
    with asking(django_db_blocker) as asker:
        yield asker


def is_refused(response: HttpResponse) -> bool:
    to_sign_in = response.status_code == 302 and response["Location"].startswith(reverse("account_login"))
    return to_sign_in or response.status_code in REFUSED


def test_every_route_has_a_row_and_every_row_a_route():
    assert ROWS.keys() == ROUTES.keys()


@pytest.mark.parametrize("route", ROUTES)
def test_each_persona_gets_what_the_table_says(route, asker, settings):
    settings.CACHES = NO_LIMITS
    url = reverse(route, kwargs={name: asker.world[name] for name in ROUTES[route]})
    rows, wrong = ROWS.get(route, {}), []
    for method in METHODS:
        expected = rows.get(method) or rows.get("ANY")
        answers = [asker.ask(name, method, url) for name in (PERSONAS if expected else MIGHTIEST)]
        got = tuple(answer.status_code for answer in answers)
        if got != expected if expected else not all(map(is_refused, answers)):
            wrong.append(f"{route} {method}: expected {expected or 'refusals'}, got {' '.join(map(str, got))}")
    assert not wrong, "\n".join(wrong)
