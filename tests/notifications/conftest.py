"""A receiver that a webhook may point at although it is on this machine."""

from collections.abc import Iterator
from typing import Any

import pytest
from webhook_receiver import Receiver, receiving


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.PAGODA_WEBHOOK_ALLOW_PRIVATE = True
    with receiving() as told:
        yield told
