"""Whether all rollouts are frozen, asked so that the answer holds until the commit."""

from django.db import connection

from controlplane.rollouts.models import RolloutFreeze

_LOCK = 0x726F6C6C
"""The number of this module's advisory lock: the freeze's row is the platform's, and a tenant cannot lock it."""


def is_frozen() -> bool:
    """Say whether rollouts are frozen. The open transaction may move one forward by that answer.

    Race: a freeze at the same moment. It waits for this transaction, or this one waits for it and then sees it.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", [_LOCK])
    return RolloutFreeze.objects.exists()


def lock_freeze() -> None:
    """Let nobody move forward while the open transaction changes the freeze."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
