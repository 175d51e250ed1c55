"""``manage.py import_model DIR --tenant SLUG --name NAME``: a folder of this machine becomes a version."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.registry import stores
from controlplane.registry.services import ImportRefused, import_folder
from tenants.actor import Actor, platform_actor, system_actor
from tenants.errors import DomainError
from tenants.models import User


class Command(BaseCommand):
    """Imports a folder in Hugging Face layout. The operator of the machine runs it; tenants upload instead."""

    help = "Check a model folder of this machine and import it as a version. The same content is the same version."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("folder", type=Path, help="a folder in Hugging Face layout")
        parser.add_argument("--tenant", required=True, metavar="SLUG", help="the tenant that will own the version")
        parser.add_argument("--name", required=True, help="the model's name, such as smollm2-135m-instruct")
        parser.add_argument("--by", metavar="EMAIL", help="the platform admin to name in the audit log")

    def handle(self, *, folder: Path, tenant: str, name: str, by: str | None, **_: Any) -> None:
        """Import, or end with exit code 1 and the reasons, a line each."""
        try:
            version = import_folder(
                actor=_actor(by),
                tenant_slug=tenant,
                name=name,
                folder=folder.absolute(),
                store=stores.from_settings(),
                say=self.stderr.write,
            )
        except ImportRefused as error:
            lines = [f"{item.file or folder}: {item.reason}. {item.mend}" for item in error.refusals]
            raise CommandError("\n".join(["refused:", *lines])) from error
        except DomainError as error:
            raise CommandError(error.message) from error
        self.stdout.write(version.id)


def _actor(email: str | None) -> Actor:
    if email is None:
        return system_actor("import_model")
    user = User.objects.filter(email=email.lower()).first()
    if user is None or not user.is_platform_admin:
        raise CommandError(f"{email} is not the address of a platform admin.")
    return platform_actor(user)
