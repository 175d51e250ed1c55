"""Which database a migration may touch."""

from typing import Any


class MigrateAsOwner:
    """Migrations run on the alias ``owner`` only; everything else uses ``default``, a role that owns nothing."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        """Say whether a migration may run on ``db``."""
        return db == "owner"
