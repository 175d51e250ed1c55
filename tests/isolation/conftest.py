from collections.abc import Iterator
from typing import Any

import pytest
from asking import Asker
from django_fixtures import make_personas, undone


@pytest.fixture(scope="module")
def asker(django_db_setup: None, django_db_blocker: Any) -> Iterator[Asker]:
    """The world is made once a module: what a request does to it is rolled back."""
    with django_db_blocker.unblock(), undone():
        yield Asker(make_personas())


@pytest.fixture
def unlimited(settings: Any) -> None:
    """No rate limits: as many requests as there are routes."""
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
