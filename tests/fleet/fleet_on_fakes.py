"""The real fleet process with scripted workers: patient with them, or where it is told ``impatient``, not at all."""

import asyncio
import os
import sys
from pathlib import Path

from dataplane.fleet import settings as fleet_settings
from dataplane.fleet.backends.local import LocalBackend
from dataplane.fleet.replica import Patience
from dataplane.fleet.server import serve

PATIENCE = {
    "patient": Patience(look_s=0.1, hang_s=60.0, load_s=60.0, drain_s=60.0, stop_s=60.0),
    "impatient": Patience(look_s=0.1, hang_s=3.0, load_s=3.0, drain_s=1.0, stop_s=1.0),
}

if __name__ == "__main__":
    settings = fleet_settings.read(os.environ)
    backend = LocalBackend(
        home=settings.home,
        control_url=settings.control_url,
        internal_secret=settings.internal_secret,
        command=(sys.executable, str(Path(__file__).with_name("fake_worker.py"))),
    )
    asyncio.run(serve(settings, backend, PATIENCE[sys.argv[1]]))
