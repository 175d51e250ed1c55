"""The one settings file. The environment drives it; it fails closed, naming what is missing before anything starts."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from dataplane.contracts import blob_store
from dataplane.contracts.keys import parse_peppers

BASE_DIR = Path(__file__).resolve().parent.parent

# ---------------------------------------------------------------------------------------------------- the environment

_REQUIRED = {
    "PAGODA_SECRET_KEY": "a long random text that signs sessions",
    "DATABASE_URL": "postgresql://ROLE:PASSWORD@HOST:PORT/NAME of a role that owns nothing",
    "REDIS_URL": "redis://HOST:PORT/0",
    "PAGODA_KEY_PEPPERS": "id:hex of 32 bytes or more; several are separated by commas, the first is current",
    "PAGODA_INTERNAL_SECRET": "a long random text that the product's own processes show each other",
    "PAGODA_PLAYGROUND_SECRET": "hex of 32 bytes or more, from which the playground's keys are derived",
    "PAGODA_WEBHOOK_SECRET": "hex of 32 bytes or more, from which the secrets of webhooks are derived",
}
_missing = [f"{name} ({meaning})" for name, meaning in _REQUIRED.items() if not os.environ.get(name)]
if _missing:
    raise ImproperlyConfigured(
        "Pagoda does not start without these environment variables. Set " + "; ".join(_missing) + "."
    )


def _flag(name: str) -> bool:
    value = os.environ.get(name, "0")
    if value not in ("0", "1"):
        raise ImproperlyConfigured(f"{name} is {value!r}. Set it to 0 or 1.")
    return value == "1"


def _secret_bytes(name: str) -> bytes:
    try:
        raw = bytes.fromhex(os.environ[name])
    except ValueError:
        raw = b""
    if len(raw) < 32:
        raise ImproperlyConfigured(f"{name} must be hex of 32 bytes or more. Make one with `openssl rand -hex 32`.")
    return raw


def _store_url() -> str:
    url = os.environ.get("PAGODA_STORE_URL", "")
    try:
        if url:
            blob_store.parse(url, s3_endpoint="")
    except ValueError as error:
        raise ImproperlyConfigured(f"PAGODA_STORE_URL is {url!r}: {error}, or leave it empty.") from error
    return url


def _peppers() -> dict[str, bytes]:
    try:
        return dict(parse_peppers(os.environ["PAGODA_KEY_PEPPERS"]))
    except ValueError as error:
        raise ImproperlyConfigured(f"PAGODA_KEY_PEPPERS cannot be read: {error}.") from error


PAGODA_HOME = Path(os.environ.get("PAGODA_HOME") or BASE_DIR / "var")
PAGODA_STORE_URL = _store_url()
"""Where files of models are kept; empty is the folder ``store`` of ``PAGODA_HOME``."""
PAGODA_S3_ENDPOINT = os.environ.get("PAGODA_S3_ENDPOINT", "").rstrip("/")
"""The URL of a server with the S3 protocol that is not Amazon's."""
PAGODA_UPLOAD_PART_BYTES = 8 * 1024 * 1024
PAGODA_KEY_PEPPERS = _peppers()
PAGODA_INTERNAL_SECRET = os.environ["PAGODA_INTERNAL_SECRET"]
PAGODA_PLAYGROUND_SECRET = _secret_bytes("PAGODA_PLAYGROUND_SECRET")
PAGODA_WEBHOOK_SECRET = _secret_bytes("PAGODA_WEBHOOK_SECRET")
PAGODA_WEBHOOK_ALLOW_PRIVATE = _flag("PAGODA_WEBHOOK_ALLOW_PRIVATE")
"""True: webhooks may be plain HTTP and on private addresses; for a machine of one's own."""
PAGODA_GATEWAY_URL = os.environ.get("PAGODA_GATEWAY_URL", "http://127.0.0.1:8001").rstrip("/")
PAGODA_FLEET_URL = os.environ.get("PAGODA_FLEET_URL", "http://127.0.0.1:8002").rstrip("/")
PAGODA_SIGNUP_OPEN = _flag("PAGODA_SIGNUP_OPEN")
"""False: an account is made by invitation only."""

SECRET_KEY = os.environ["PAGODA_SECRET_KEY"]
DEBUG = _flag("PAGODA_DEBUG")

_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_public_hosts = [host for host in os.environ.get("PAGODA_PUBLIC_HOSTS", "").split(",") if host]
_tls_hosts = [host for host in _public_hosts if host not in _LOOPBACK_HOSTS]
"""A host that others can reach is reached over TLS, or not at all."""
ALLOWED_HOSTS = [*_LOOPBACK_HOSTS, *_public_hosts]
PAGODA_CONSOLE_URL = (
    f"https://{_tls_hosts[0]}" if _tls_hosts else os.environ.get("PAGODA_CONTROL_URL", "http://127.0.0.1:8000")
).rstrip("/")
"""Where links in letters and webhooks lead."""

# ------------------------------------------------------------------------------------------------------- applications

INSTALLED_APPS = [
    "console",
    "tenants",
    "controlplane.apps.ControlplaneConfig",
    "controlplane.jobs",
    "controlplane.metering",
    "controlplane.notifications",
    "controlplane.rollouts",
    "controlplane.registry",
    "controlplane.deployments",
    "controlplane.isolation",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "rest_framework",
    "drf_spectacular",
    "django_htmx",
    "csp",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
]

MIDDLEWARE = [
    "controlplane.middleware.RequestContextMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "controlplane.middleware.StaticMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "controlplane.middleware.DomainErrorMiddleware",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "console" / "templates"],  # before allauth's own, which the console dresses
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "console.frame.frame",
            ],
        },
    }
]

# ----------------------------------------------------------------------------------------------------------- database


def _database(url: str, **options: Any) -> dict[str, Any]:
    try:
        parts = conninfo_to_dict(url)
    except ProgrammingError as error:
        raise ImproperlyConfigured("DATABASE_URL and DATABASE_OWNER_URL are URLs of PostgreSQL.") from error
    known = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
    return {
        "ENGINE": "django.db.backends.postgresql",
        # A transaction belongs to an actor (tenants.actor.acting_as), and a streamed answer would hold one open.
        "ATOMIC_REQUESTS": False,
        "CONN_HEALTH_CHECKS": True,
        **{known[name]: str(value) for name, value in parts.items() if name in known},
        "OPTIONS": {
            "connect_timeout": 5,
            **{name: value for name, value in parts.items() if name not in known},
            **options,
        },
    }


DATABASES = {"default": _database(os.environ["DATABASE_URL"], pool={"min_size": 1, "max_size": 16, "timeout": 10})}
# The owner's credential is for migrations only: the processes that serve have no need of it.
if os.environ.get("DATABASE_OWNER_URL"):
    DATABASES["owner"] = _database(os.environ["DATABASE_OWNER_URL"])
DATABASE_ROUTERS = ["controlplane.routers.MigrateAsOwner"]

# --------------------------------------------------------------------------------------------------- cache and Celery

REDIS_URL = os.environ["REDIS_URL"]
CACHES = {
    "default": {
        "BACKEND": "controlplane.cache.RedisOrLocalCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "pagoda:web",
        "OPTIONS": {"socket_connect_timeout": 1, "socket_timeout": 1},
    }
}

CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_TRANSPORT_OPTIONS = {
    # A worker killed with -9 is redelivered within seconds; without the three it is hours (the lease in PostgreSQL is
    # what makes the second delivery harmless).
    "visibility_timeout": 60,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
    "global_keyprefix": "pagoda:celery:",
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_IGNORE_RESULT = True  # rows are the result
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE_FILENAME = str(PAGODA_HOME / "run" / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = {"jobs-clock": {"task": "jobs.clock", "schedule": 1.0, "options": {"expires": 1.0}}}

JOB_HANDLERS: dict[str, str] = {
    "audit.verify": "controlplane.jobs.chains.verify",
    "isolation.prune": "controlplane.isolation.jobs.prune",
    "jobs.prune": "controlplane.jobs.prune.prune",
    "metering.roll_up": "controlplane.metering.jobs.roll_up",
    "metering.settle_abandoned": "controlplane.metering.jobs.settle_abandoned",
    "notifications.deliver": "controlplane.notifications.jobs.deliver",
    "registry.collect": "controlplane.registry.gc.collect",
    "registry.sweep_uploads": "controlplane.registry.sweep.sweep_uploads",
    "registry.validate": "controlplane.registry.validation.job.validate",
    "rollouts.tick": "controlplane.rollouts.jobs.tick",
}
"""The closed set of job kinds: kind to the dotted path of its handler (controlplane.jobs.run.Handler)."""
JOB_TICKS: dict[str, int] = {
    "audit.verify": 3600,
    "isolation.prune": 3600,
    "jobs.prune": 3600,
    "metering.roll_up": 5,
    "metering.settle_abandoned": 10,
    "notifications.deliver": 3,
    "registry.collect": 60,
    "registry.sweep_uploads": 300,
    "rollouts.tick": 2,
}
"""The periodic ones: kind to its interval in seconds."""
JOB_CROWDS: dict[str, tuple[int, int]] = {"registry.validate": (2, 1)}
"""Kinds of which people make many: how many run at once, in all and of one tenant. Leave workers to other kinds."""

VERSION_HOLDERS = ["controlplane.deployments.dependents.of_version", "controlplane.rollouts.holders.of_version"]
"""Who is asked before a version ends: dotted paths of controlplane.registry.holders.Question."""
DEPLOYMENT_HOLDERS = ["controlplane.rollouts.holders.of_deployment"]
"""Who is asked before a deployment ends, stops or runs otherwise: of controlplane.deployments.dependents.Question."""
VALIDATION_DEVICES = "controlplane.deployments.devices.of_fleet"
"""Who says what a version can run on: the dotted path of controlplane.registry.devices.Source."""

# ---------------------------------------------------------------------------------------------------------------- API

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.api.authentication.KeyAuthentication",  # first: its header makes a refusal a 401
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": [],  # services and selectors decide
    "DEFAULT_PARSER_CLASSES": ["controlplane.api.inputs.JsonParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "controlplane.api.document.Operation",
    "EXCEPTION_HANDLER": "controlplane.api.errors.handle",
    "URL_FORMAT_OVERRIDE": None,  # ?format= is a parameter that nobody knows, as any other
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Pagoda",
    "DESCRIPTION": (
        "Manage keys, models, deployments, rollouts, webhooks and usage. Inference is OpenAI-compatible and served "
        "elsewhere, by the gateway. A program shows its key: `Authorization: Bearer pgd_...`. Bodies are JSON objects "
        "of at most 1 MiB with the fields that are named here and no others. Every answer has an `x-request-id`; every "
        "refusal is an `Error`, whose `code` is stable."
    ),
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_PATCH": False,  # what a PATCH requires, it requires
    "POSTPROCESSING_HOOKS": ["controlplane.api.document.describe_answers"],
}

# ------------------------------------------------------------------------------------------------------------ sign-in

AUTH_USER_MODEL = "tenants.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"

ACCOUNT_ADAPTER = "tenants.signin.AccountAdapter"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "mandatory"
ACCOUNT_EMAIL_VERIFICATION_BY_CODE_ENABLED = True
ACCOUNT_PASSWORD_RESET_BY_CODE_ENABLED = True
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_LOGOUT_ON_PASSWORD_CHANGE = True
ACCOUNT_REAUTHENTICATION_TIMEOUT = 300
SIGN_IN_LOCK_S = 300
ACCOUNT_RATE_LIMITS = {"login": "30/m/ip", "login_failed": f"10/m/ip,5/{SIGN_IN_LOCK_S}s/key"}
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_ISSUER = "Pagoda"

SESSION_ENGINE = "django.contrib.sessions.backends.db"  # Redis may be flushed at any second; a session may not
SESSION_COOKIE_NAME = "pagoda_session"
SESSION_COOKIE_AGE = 14 * 24 * 3600
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = bool(_tls_hosts)
CSRF_COOKIE_NAME = "pagoda_csrf"
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SECURE = bool(_tls_hosts)
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in _tls_hosts]

_smtp = urlsplit(os.environ.get("PAGODA_SMTP_URL", ""))
PAGODA_SENDS_MAIL = bool(_smtp.hostname)
"""False: letters are kept in files, and whoever invites passes the link on."""
DEFAULT_FROM_EMAIL = os.environ.get("PAGODA_EMAIL_FROM", "pagoda@localhost")
if _smtp.hostname:
    EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    EMAIL_HOST, EMAIL_PORT = _smtp.hostname, _smtp.port or 587
    EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _smtp.username or "", _smtp.password or ""
    EMAIL_USE_TLS = _smtp.scheme == "smtps"
    EMAIL_TIMEOUT = 10
else:
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = PAGODA_HOME / "mail"

# ----------------------------------------------------------------------------------------------------------- security

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if _tls_hosts else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = bool(_tls_hosts)
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _tls_hosts else None
X_FRAME_OPTIONS = "DENY"


def _store_origins() -> list[str]:
    """Name the object store, to which a browser sends the parts of an upload itself."""
    if not PAGODA_STORE_URL.startswith("s3:"):
        return []
    endpoint = urlsplit(PAGODA_S3_ENDPOINT or "https://*.amazonaws.com")
    return [f"{endpoint.scheme}://{endpoint.netloc}"]


CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF, *_store_origins()],
        "worker-src": [SELF],
        "manifest-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 500

# ------------------------------------------------------------------------------------- language, static files, logging

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True  # the repository is the release: nothing has to be collected before a start
WHITENOISE_AUTOREFRESH = DEBUG

_LOG_PROCESSORS: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
structlog.configure(
    processors=[*_LOG_PROCESSORS, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "json": {
            "()": structlog.stdlib.ProcessorFormatter,
            "foreign_pre_chain": _LOG_PROCESSORS,
            "processors": [
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "django.server": {"handlers": [], "propagate": True},
        "django.request": {"level": "ERROR"},
        "httpx": {"level": "WARNING"},  # else a line for every question to the fleet
    },
}
