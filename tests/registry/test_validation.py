"""A version's way from its parts to READY or REJECTED, with the real inspector and a fleet by script."""

from pathlib import Path

import pytest
from tiny_models import make_tiny_llama
from validation_world import bring, fleet_double, stored, validate

from controlplane.jobs.lease import JobState
from controlplane.registry.checklist import LINES
from controlplane.registry.stores.local import LocalStore


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n<script>alert(1)</script>\n")
    return folder


@pytest.fixture
def store(tmp_path: Path, settings) -> LocalStore:
    settings.PAGODA_HOME = tmp_path
    settings.PAGODA_STORE_URL = ""
    return LocalStore(tmp_path / "store")


@pytest.fixture
def fleet(settings):
    with fleet_double(settings.PAGODA_INTERNAL_SECRET) as double:
        settings.PAGODA_FLEET_URL = double.url
        yield double


def test_a_good_upload_becomes_ready_with_every_line_passed(personas, tiny, store, fleet):
    version = bring(personas.acme, tiny, store)
    assert validate(version) is JobState.DONE
    ready = stored(version)
    assert [(check.name, check.state) for check in ready.checks.all()] == [(line.name, "passed") for line in LINES]
    assert ready.state == "ready"
