import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import RequestFactory

from controlplane import checks
from controlplane.middleware import DomainErrorMiddleware
from tenants.errors import Conflict, DomainError, Forbidden, Invalid, NotFound, Unauthenticated

ROOT = Path(__file__).parents[2]
GOOD = {
    "PAGODA_SECRET_KEY": "s" * 40,
    "DATABASE_URL": "postgresql://app:p%40ss@127.0.0.1:1/pagoda?sslmode=require",
    "REDIS_URL": "redis://127.0.0.1:1/0",
    "PAGODA_KEY_PEPPERS": f"p1:{'ab' * 32}",
    "PAGODA_INTERNAL_SECRET": "i" * 40,
    "PAGODA_PLAYGROUND_SECRET": "cd" * 32,
    "PAGODA_WEBHOOK_SECRET": "ef" * 32,
}


def start(program: str = "import controlplane.settings", **changes: str | None) -> subprocess.CompletedProcess[str]:
    """Start a process with the environment GOOD, changed; None takes a variable away."""
    env = {"PATH": os.environ["PATH"], "DJANGO_SETTINGS_MODULE": "controlplane.settings", **GOOD, **changes}
    env = {name: value for name, value in env.items() if value is not None}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, env=env, check=False, capture_output=True, text=True)


def test_without_its_secrets_nothing_starts_and_each_is_named():
    result = start(**dict.fromkeys(GOOD))
    assert result.returncode == 1
    for name in GOOD:
        assert name in result.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PAGODA_SECRET_KEY", ""),
        ("PAGODA_KEY_PEPPERS", "p1:abcd"),
        ("PAGODA_PLAYGROUND_SECRET", "short"),
        ("PAGODA_WEBHOOK_SECRET", "short"),
        ("PAGODA_DEBUG", "yes"),
        ("DATABASE_URL", "not a url"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(name, value):
    result = start(**{name: value})
    assert result.returncode == 1
    assert name in result.stderr.splitlines()[-1]


def test_a_public_host_is_reached_over_tls_only():
    program = (
        "from controlplane import settings as s\n"
        "assert s.SESSION_COOKIE_SECURE and s.CSRF_COOKIE_SECURE and s.SECURE_HSTS_SECONDS\n"
        "assert s.CSRF_TRUSTED_ORIGINS == ['https://pagoda.example'] and 'pagoda.example' in s.ALLOWED_HOSTS\n"
        "assert s.DATABASES['default']['PASSWORD'] == 'p@ss'\n"
        "assert s.DATABASES['default']['OPTIONS']['sslmode'] == 'require' and 'owner' not in s.DATABASES\n"
    )
    result = start(program, PAGODA_PUBLIC_HOSTS="pagoda.example,127.0.0.1")
    assert result.returncode == 0, result.stderr


def test_a_server_that_is_misconfigured_says_how_to_mend_it_and_ends():
    result = start("import controlplane.asgi", PAGODA_INTERNAL_SECRET="short")
    assert result.returncode == 1
    assert "PAGODA_INTERNAL_SECRET is shorter than 32 characters. Make one with `openssl rand" in result.stderr


def test_migrating_without_the_owners_credential_says_what_is_missing(monkeypatch):
    monkeypatch.delitem(connections.settings, "owner")
    with pytest.raises(CommandError, match="DATABASE_OWNER_URL"):
        call_command("migrate", verbosity=0)


def test_the_configuration_under_test_passes_its_checks():
    call_command("check")


def test_secrets_are_told_apart(settings):
    settings.SECRET_KEY = settings.PAGODA_INTERNAL_SECRET
    assert [fault.msg for fault in checks.secrets_are_long_and_apart(None)] == ["Two secrets are the same."]


def test_the_owner_does_not_serve(settings, monkeypatch):
    monkeypatch.setitem(settings.DATABASES["owner"], "USER", settings.DATABASES["default"]["USER"])
    assert "same role" in checks.roles_are_apart(None)[0].msg


def test_debug_pages_stay_on_one_machine(settings):
    settings.DEBUG = settings.SESSION_COOKIE_SECURE = True
    assert checks.debug_is_for_one_machine(None)


def test_every_job_kind_has_a_handler(settings):
    settings.JOB_HANDLERS, settings.JOB_TICKS = {"a": "nowhere.at.all"}, {"b": 1}
    assert [fault.msg.split(":")[0] for fault in checks.handlers_exist(None)] == [
        "The handler of job a cannot be imported",
        "The tick b has no handler.",
    ]


@pytest.mark.parametrize("setting", ["VERSION_HOLDERS", "DEPLOYMENT_HOLDERS"])
def test_everybody_who_may_hold_a_version_or_deployment_can_be_asked(settings, setting):
    assert checks.holders_exist(None) == []
    setattr(settings, setting, ["nowhere.at.all"])
    assert "nowhere.at.all cannot be imported" in checks.holders_exist(None)[0].msg


@pytest.mark.parametrize(
    ("error", "status"),
    [(NotFound("x"), 404), (Forbidden("x"), 403), (Conflict("x"), 409), (Invalid("x"), 422), (DomainError("x"), 500)],
)
def test_each_domain_error_has_its_page(error, status):
    page = DomainErrorMiddleware(lambda request: None).process_exception(RequestFactory().get("/t/acme/"), error)
    assert page.status_code == status
    assert error.code.encode() in page.content


def test_who_has_not_signed_in_is_sent_there_and_back(settings):
    middleware = DomainErrorMiddleware(lambda request: None)
    page = middleware.process_exception(RequestFactory().get("/t/acme/keys?x=1"), Unauthenticated("who?"))
    assert page["Location"] == "/account/login/?next=/t/acme/keys%3Fx%3D1"


def test_other_exceptions_are_not_dressed_up():
    middleware = DomainErrorMiddleware(lambda request: None)
    assert middleware.process_exception(RequestFactory().get("/"), ValueError()) is None
