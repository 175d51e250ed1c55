"""The page on which a browser uploads. What its script does is tested in a browser: tests/e2e."""

import json
import re
from types import SimpleNamespace

import pytest
from console_world import page
from domain import make_version

from console import model_folder
from controlplane.registry import uploads
from controlplane.registry.parts import FilePlan
from controlplane.registry.uploads import Upload
from tenants.actor import member_actor

NO_BYTES = SimpleNamespace(begin=lambda key: f"{key} ")


@pytest.fixture
def upload(personas) -> Upload:
    files = [FilePlan("config.json", 1_000_000)]
    return uploads.begin_upload(actor=member_actor(personas.alice, "acme"), model="tiny", files=files, store=NO_BYTES)


def test_the_page_carries_the_rules_that_the_browser_asks(alice):
    text = page(alice, "/t/acme/uploads/new?model=tiny")
    (rules,) = re.findall(r'<script id="rules" type="application/json">(.*?)</script>', text)
    assert json.loads(rules)["taken"] == model_folder.TAKEN
    assert 'value="tiny"' in text


def test_a_worker_of_ours_may_run_and_no_other(alice):
    policy = alice.get("/t/acme/uploads/new")["Content-Security-Policy"]
    assert "worker-src 'self'" in policy


def test_a_version_can_be_said_to_come_from_one_that_is_here(alice, personas):
    assert "Made from" not in page(alice, "/t/acme/uploads/new")
    version = make_version(personas.acme)
    assert version.id in page(alice, "/t/acme/uploads/new")


def test_an_open_upload_is_continued_from_every_page_of_it(alice, upload):
    here = f"/t/acme/uploads/{upload.version.id}"
    for url in ("/t/acme/models", f"/t/acme/models/{upload.version.model_id}", f"/t/acme/versions/{upload.version.id}"):
        assert here in page(alice, url)
    text = page(alice, here)
    assert "977 KiB" in text
    assert f'data-version="{upload.version.id}"' in text


def test_an_upload_that_is_given_up_is_shown_as_the_version_that_it_is(alice, upload):
    here = f"/t/acme/uploads/{upload.version.id}"
    assert alice.post(f"{here}/abort").status_code == 302
    assert alice.get(here)["Location"] == f"/t/acme/versions/{upload.version.id}"
    text = page(alice, f"/t/acme/versions/{upload.version.id}")
    assert "The upload was aborted by" in text
    assert alice.post(f"{here}/abort").status_code == 409


def test_another_tenants_upload_is_none(signed_in, upload):
    mallory = signed_in("mallory")
    page(mallory, f"/t/evil/uploads/{upload.version.id}", status=404)
    assert mallory.post(f"/t/evil/uploads/{upload.version.id}/abort").status_code == 404
