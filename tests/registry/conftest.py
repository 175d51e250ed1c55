"""A tiny good model, a store on disk, and a fleet by script."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_models import make_tiny_llama
from validation_world import FleetDouble, fleet_double

from controlplane.registry.inspection import inspect
from controlplane.registry.stores.local import LocalStore
from dataplane.contracts.verdict import Verdict

CARD = "---\nlicense: apache-2.0\n---\n# Tiny\n<script>alert(1)</script>\n"


@pytest.fixture(scope="session")
def carded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a README that tries something."""
    folder = make_tiny_llama(tmp_path_factory.mktemp("models") / "carded")
    (folder / "README.md").write_text(CARD)
    return folder


@pytest.fixture(scope="session")
def good_verdict(carded: Path) -> Verdict:
    """What the inspector says of ``carded``: asked once."""
    return inspect(carded)


@pytest.fixture
def home_store(tmp_path: Path, settings: Any) -> LocalStore:
    """The store of an installation of its own."""
    settings.PAGODA_HOME = tmp_path
    settings.PAGODA_STORE_URL = ""
    return LocalStore(tmp_path / "store")


@pytest.fixture
def fleet(settings: Any) -> Iterator[FleetDouble]:
    """The fleet that the settings name."""
    with fleet_double(settings.PAGODA_INTERNAL_SECRET) as double:
        settings.PAGODA_FLEET_URL = double.url
        yield double
