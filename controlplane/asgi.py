"""What the ASGI server runs. A misconfigured process does not start; the reason and the mend are printed."""

import os

import django
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
django.setup()

from controlplane.api.part_receiver import PartReceiver  # noqa: E402
from controlplane.bodies import BoundedBodies  # noqa: E402
from controlplane.checks import refuse_misconfiguration  # noqa: E402

refuse_misconfiguration()
application = PartReceiver(BoundedBodies(get_asgi_application()))
