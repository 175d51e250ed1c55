"""Make the first tenant, people, model, deployment and key where missing: ``python -m stack.bootstrap``.

Everything goes through the services that the console and the API use, so nothing can be had here that they refuse:
then it says why and ends with ``os.EX_CONFIG``, as trying again would not help. The result is ``up.json`` in the state
folder.
"""

import json
import os
import sys
from typing import TYPE_CHECKING

import django

from stack.home import Home
from stack.hosted_model import refused
from tenants.errors import DomainError

if TYPE_CHECKING:
    from tenants.actor import Actor


ADMIN_EMAIL = "admin@pagoda.example"
TENANT, TENANT_NAME = "acme", "Acme"
USER_EMAIL = "alice@acme.example"
KEY_NAME = "First steps"


def main() -> int:
    """Bring the state about and describe it."""
    home = Home.open()
    django.setup()
    try:
        _ensure_people(home)
        deployment_id = _ensure_deployment(home)
        _describe(home, deployment_id, _ensure_key(home.described().get("api_key", "")))
    except DomainError as error:
        print(_sentence(home, error), file=sys.stderr)
        return os.EX_CONFIG
    return 0


def _sentence(home: Home, error: DomainError) -> str:
    from controlplane.registry.services import ImportRefused  # noqa: PLC0415 - as below

    if isinstance(error, ImportRefused):
        return refused(home.model_dir, error.refusals)
    return error.message


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


def _ensure_deployment(home: Home) -> str:
    from controlplane.deployments.selectors import find_deployment  # noqa: PLC0415
    from controlplane.deployments.services import deploy_version  # noqa: PLC0415
    from controlplane.registry import stores  # noqa: PLC0415
    from controlplane.registry.models import VersionState  # noqa: PLC0415
    from controlplane.registry.selectors import list_versions  # noqa: PLC0415
    from controlplane.registry.services import import_folder  # noqa: PLC0415
    from tenants.actor import system_actor  # noqa: PLC0415

    actor, name = _owner(), home.model_name
    deployment = find_deployment(actor=actor, name=name)
    if deployment is not None:
        return deployment.deployment.id
    versions = [
        version
        for version in list_versions(actor=actor)
        if version.model.name == name and version.state == VersionState.READY
    ]
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
    return deploy_version(actor=actor, name=name, version_id=versions[0].id).id


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


def _describe(home: Home, deployment_id: str, api_key: str) -> None:
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
        "model": home.model_name,
    }
    hosted = {"model": home.model_name, "model_dir": str(home.model_dir), "deployment_id": deployment_id}
    for name, content in (("up.json", values), ("hosted.json", hosted)):
        path = home.root / name
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=2))


if __name__ == "__main__":
    sys.exit(main())
