"""The project as an app: it has no models, only checks."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """Registers the system checks of the project."""

    name = "controlplane"

    def ready(self) -> None:
        """Import the checks, which registers them."""
        from controlplane import checks  # noqa: F401, PLC0415
