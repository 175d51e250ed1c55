"""Make the first tenant, people, model, deployment and key where missing: ``python -m stack.bootstrap``.

Everything goes through the services that the console and the API use, so nothing can be had here that they refuse. The
result is ``up.json`` in the state folder.
"""

import json
import sys
from typing import TYPE_CHECKING

import django

from stack.home import Home

if TYPE_CHECKING:
    from tenants.actor import Actor


ADMIN_EMAIL = "admin@pagoda.example"
TENANT, TENANT_NAME = "acme", "Acme"
USER_EMAIL = "alice@acme.example"
KEY_NAME = "First steps"


def main() -> None:
    """Bring the state about and describe it."""
    home = Home.open()
    django.setup()
    _ensure_people(home)
    _ensure_deployment(home)
    _describe(home, _ensure_key(_described(home).get("api_key", "")))


def _ensure_people(home: Home) -> None:
    from tenants.actor import system_actor  # noqa: PLC0415 - models exist once Django is set up
    from tenants.models import User  # noqa: PLC0415
    from tenants.selectors import list_tenants  # noqa: PLC0415
    from tenants.services.tenancy import create_tenant, create_user  # noqa: PLC0415

    actor = system_actor("bootstrap")
    if not User.objects.filter(email=ADMIN_EMAIL).exists():
        create_user(
            actor=actor,
            email=ADMIN_EMAIL,
            password=home.secret("admin_password"),
            name="Platform admin",
            is_platform_admin=True,
        )
    if not User.objects.filter(email=USER_EMAIL).exists():
        create_user(actor=actor, email=USER_EMAIL, password=home.secret("user_password"), name="Alice")
    if all(tenant.slug != TENANT for tenant, _ in list_tenants(actor=actor)):
        owner = User.objects.get(email=USER_EMAIL)
        create_tenant(actor=actor, slug=TENANT, name=TENANT_NAME, owner=owner)


def _ensure_deployment(home: Home) -> None:
    from controlplane.deployments.selectors import find_deployment  # noqa: PLC0415
    from controlplane.deployments.services import deploy_version  # noqa: PLC0415
    from controlplane.registry import stores  # noqa: PLC0415
    from controlplane.registry.selectors import list_versions  # noqa: PLC0415
    from controlplane.registry.services import import_folder  # noqa: PLC0415
    from tenants.actor import system_actor  # noqa: PLC0415

    actor, name = _owner(), home.model_dir.name
    if find_deployment(actor=actor, name=name) is not None:
        return
    versions = [version for version in list_versions(actor=actor) if version.model.name == name]
    if not versions:
        platform = system_actor("bootstrap")
        versions = [
            import_folder(
                actor=platform,
                tenant_slug=TENANT,
                name=name,
                folder=home.model_dir,
                store=stores.from_settings(),
                say=lambda line: print(line, file=sys.stderr),
            )
        ]
    deploy_version(actor=actor, name=name, version_id=versions[0].id)


def _ensure_key(known: str) -> str:
    """Return a key that works: the one described before while it is accepted, else a new one."""
    from tenants.errors import Unauthenticated  # noqa: PLC0415
    from tenants.roles import Scope  # noqa: PLC0415
    from tenants.services.keys import authenticate_key, issue_key  # noqa: PLC0415

    try:
        authenticate_key(known)
    except Unauthenticated:
        return issue_key(actor=_owner(), name=KEY_NAME, scopes=(Scope.INFERENCE, Scope.READ)).text
    return known


def _owner() -> "Actor":
    from tenants.actor import member_actor  # noqa: PLC0415
    from tenants.models import User  # noqa: PLC0415

    return member_actor(User.objects.get(email=USER_EMAIL), TENANT)


def _described(home: Home) -> dict[str, str]:
    path = home.root / "up.json"
    if not path.exists():
        return {}
    described: dict[str, str] = json.loads(path.read_text())
    return described


def _describe(home: Home, api_key: str) -> None:
    values = {
        "console_url": home.console_url,
        "api_url": f"{home.console_url}/api/v1",
        "gateway_url": f"{home.gateway_url}/v1",
        "admin_email": ADMIN_EMAIL,
        "admin_password": home.secret("admin_password"),
        "tenant": TENANT,
        "user_email": USER_EMAIL,
        "user_password": home.secret("user_password"),
        "api_key": api_key,
        "model": home.model_dir.name,
    }
    path = home.root / "up.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(values, indent=2))


if __name__ == "__main__":
    main()
