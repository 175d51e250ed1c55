"""System checks: each says what is wrong with the configuration, and the mend."""

import sys
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register, run_checks
from django.utils.module_loading import import_string

_SECRET_MIN_CHARS = 32


@register(Tags.security)
def secrets_are_long_and_apart(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Refuse short secrets, and one secret in two places: who learns the one must not have the other."""
    texts = {
        "PAGODA_SECRET_KEY": settings.SECRET_KEY,
        "PAGODA_INTERNAL_SECRET": settings.PAGODA_INTERNAL_SECRET,
        "PAGODA_PLAYGROUND_SECRET": settings.PAGODA_PLAYGROUND_SECRET.hex(),
        "PAGODA_WEBHOOK_SECRET": settings.PAGODA_WEBHOOK_SECRET.hex(),
        **{f"the pepper {name}": value.hex() for name, value in settings.PAGODA_KEY_PEPPERS.items()},
    }
    errors: list[CheckMessage] = [
        Error(f"{name} is shorter than {_SECRET_MIN_CHARS} characters.", hint="Make one with `openssl rand -hex 32`.")
        for name, text in texts.items()
        if len(text) < _SECRET_MIN_CHARS
    ]
    if len(set(texts.values())) < len(texts):
        errors.append(Error("Two secrets are the same.", hint=f"Make each its own: {', '.join(texts)}."))
    return errors


@register(Tags.database)
def roles_are_apart(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Refuse one role for both databases: an owner could lift row-level security."""
    owner = settings.DATABASES.get("owner")
    if owner is not None and owner["USER"] == settings.DATABASES["default"]["USER"]:
        return [
            Error(
                "DATABASE_URL and DATABASE_OWNER_URL name the same role, so row-level security could be lifted.",
                hint="Give DATABASE_URL a role of its own: CREATE ROLE pagoda_app LOGIN NOSUPERUSER NOBYPASSRLS.",
            )
        ]
    return []


@register(Tags.security)
def debug_is_for_one_machine(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Refuse debug pages, which show settings and variables, on a host that others can reach."""
    if settings.DEBUG and settings.SESSION_COOKIE_SECURE:
        return [Error("PAGODA_DEBUG is 1 and PAGODA_PUBLIC_HOSTS names a public host.", hint="Set PAGODA_DEBUG to 0.")]
    return []


@register("jobs")
def handlers_exist(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Refuse a job kind whose handler cannot be imported, and a tick whose kind has no handler."""
    errors: list[CheckMessage] = []
    for kind, path in settings.JOB_HANDLERS.items():
        try:
            import_string(path)
        except ImportError as error:
            errors.append(Error(f"The handler of job {kind} cannot be imported: {error}", hint="Mend JOB_HANDLERS."))
    for kind in settings.JOB_TICKS.keys() - settings.JOB_HANDLERS.keys():
        errors.append(Error(f"The tick {kind} has no handler.", hint="Add it to JOB_HANDLERS, or drop the tick."))
    return errors


@register("registry")
def holders_exist(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Refuse a question that cannot be imported: a version or deployment would end while something needs it."""
    errors: list[CheckMessage] = []
    for setting in ("VERSION_HOLDERS", "DEPLOYMENT_HOLDERS"):
        for path in getattr(settings, setting):
            try:
                import_string(path)
            except ImportError as error:
                errors.append(Error(f"{path} cannot be imported: {error}", hint=f"Mend {setting}."))
    return errors


def refuse_misconfiguration() -> None:
    """End the process with the reason and the mend where a check fails: servers run no checks by themselves."""
    faults = [message for message in run_checks() if message.is_serious() and not message.is_silenced()]
    if faults:
        sys.exit("\n".join(f"{fault.msg} {fault.hint or ''}".strip() for fault in faults))
