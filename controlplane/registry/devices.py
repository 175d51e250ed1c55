"""Asks what a version can run on. The app that knows the fleet is above this one, so the settings name who answers."""

import os
import platform
from collections.abc import Callable, Sequence

from django.conf import settings
from django.utils.module_loading import import_string

from dataplane.contracts.replica import Device

Source = Callable[[], Sequence[Device]]


def devices() -> list[Device]:
    """Return the devices at hand: the fleet's, or this machine's while no node has told of any."""
    source: Source = import_string(settings.VALIDATION_DEVICES)
    return list(source()) or [Device(kind="cpu", name=platform.node(), memory_bytes=_this_machines_bytes())]


def _this_machines_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
