"""Asks who holds on to a version. The apps that may are above this one, so the settings name their questions."""

from collections.abc import Callable

from django.conf import settings
from django.utils.module_loading import import_string

from controlplane.registry.models import ModelVersion

Question = Callable[[ModelVersion], list[str]]


def holders(version: ModelVersion) -> list[str]:
    """Return what would break if ``version`` ended, in words such as "the deployment chat"; empty when nothing would.

    Race: a deployment of it that is made at the same moment. Call this within the transaction that ends the version,
    with its row locked; whoever puts a version into service locks that row too, so one of the two sees the other.
    """
    questions: list[Question] = [import_string(path) for path in settings.VERSION_HOLDERS]
    return [holder for question in questions for holder in question(version)]
