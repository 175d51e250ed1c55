"""``manage.py publish_catalog``: the publisher process."""

import signal
import sys
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from psycopg.conninfo import make_conninfo
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.deployments.publisher import Publisher

_TIMEOUT_S = 3.0


class Command(BaseCommand):
    """Runs until SIGTERM or SIGINT. A second one beside it is harmless."""

    help = "Publish the catalog to Redis whenever it changes."

    def handle(self, **_: Any) -> None:
        """Publish until told to end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
        database = settings.DATABASES["default"]
        redis = Redis.from_url(
            settings.REDIS_URL,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        database_url = make_conninfo(
            host=database["HOST"],
            port=database["PORT"],
            user=database["USER"],
            password=database["PASSWORD"],
            dbname=database["NAME"],
        )
        Publisher(database_url=database_url, redis=redis).run()


def _end(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)
