"""That a version became ready or was rejected is announced in the same commit."""

import pytest
from telling import SYSTEM
from validation_world import bring, validate

from controlplane.notifications.models import Announcement
from controlplane.registry.validation import steps
from tenants.actor import acting_as


@pytest.fixture
def announced(personas, carded, home_store, fleet, monkeypatch, good_verdict):
    """Validate a good version, then one of the same content; return what was announced of the second."""
    monkeypatch.setattr(steps, "inspect", lambda *_, **__: good_verdict)
    versions = [bring(personas.acme, carded, home_store) for _ in range(2)]
    for version in versions:
        validate(version)
    with acting_as(SYSTEM):
        return versions, list(Announcement.objects.order_by("at"))


def test_what_a_version_became_is_announced_with_the_reason_and_a_link(announced):
    (good, twin), (ready, rejected) = announced
    assert (ready.event, ready.subject_id, ready.data["model"]) == ("version.ready", good.id, "tiny")
    assert (rejected.event, rejected.subject_id) == ("version.rejected", twin.id)
    assert "exactly this content" in rejected.data["reason"]
    assert rejected.headline == "Version 2 of tiny is rejected."
    assert rejected.link_path == f"/t/acme/versions/{twin.id}"
