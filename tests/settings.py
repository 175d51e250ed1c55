"""The settings under test: the product's own, read from an environment made here and taken away again.

No server is named that exists: a test that needs PostgreSQL or Redis asks for the fixtures that start them, and those
fill in the addresses (``django_fixtures``). ``mypy`` reads the same module, so checking types needs no environment.
"""

import os
import secrets
from unittest import mock

TEST_ENVIRONMENT = {
    "PAGODA_SECRET_KEY": secrets.token_hex(32),
    "DATABASE_URL": "postgresql://pagoda_app@127.0.0.1:1/pagoda",
    "DATABASE_OWNER_URL": "postgresql://pagoda_owner@127.0.0.1:1/pagoda",
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "PAGODA_KEY_PEPPERS": f"t1:{secrets.token_hex(32)}",
    "PAGODA_INTERNAL_SECRET": secrets.token_hex(32),
    "PAGODA_PLAYGROUND_SECRET": secrets.token_hex(32),
    "PAGODA_WEBHOOK_SECRET": secrets.token_hex(32),
}

_others = {name: value for name, value in os.environ.items() if not name.startswith("PAGODA_")}
with mock.patch.dict(os.environ, _others | TEST_ENVIRONMENT, clear=True):
    from controlplane.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # a test signs in; it does not guard a password
ALLOWED_HOSTS = ["testserver", "127.0.0.1", "localhost"]
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
PAGODA_SENDS_MAIL = True  # into an outbox that tests read
