import re
from types import SimpleNamespace

import pytest
from console_world import page, report_node
from django.test import Client
from domain import PLATFORM, deploy, make_version

from controlplane.deployments import services
from controlplane.deployments.models import Deployment
from controlplane.registry.models import VersionState
from dataplane.contracts.catalog import KeepWarm, Share
from dataplane.contracts.replica import ReplicaState, Tier, TierCost
from tenants.actor import acting_as, member_actor
from tenants.services import issue_key

FORM = {
    "revision": "1", "min_replicas": "0", "max_replicas": "2", "asleep_after_s": "300", "warm_after_s": "3600",
    "disk_after_s": "", "cold_wait_s": "30", "dtype": "bf16", "max_model_len": "", "max_num_seqs": "16",
    "kv_memory_mb": "1", "kv_dtype": "int8", "device": "auto",
}  # fmt: skip
SUNDAY = KeepWarm((6,), 600, 720, 1)
NEW = {"name": "fresh", "idle": "sleeps", "max_replicas": "2", "dtype": "fp32", "kv_memory_mb": "8"}


@pytest.fixture
def chat(personas) -> Deployment:
    return deploy(personas.acme)


def stored(deployment: Deployment) -> Deployment:
    with acting_as(PLATFORM):
        return Deployment.objects.get(pk=deployment.pk)


def here(deployment: Deployment, act: str = "") -> str:
    return f"/t/acme/deployments/{deployment.id}{act}"


def test_a_deployment_is_told_with_state_pool_replicas_requests_and_events(alice, busy):
    overview = page(alice, here(busy.deployment))
    for words in ("Live", "In use 320", "whole pool", "No start was measured yet", "It stays ready however idle it is"):
        assert words in overview
    replicas = page(alice, here(busy.deployment, "?tab=replicas"))
    assert "rep_0" in replicas
    assert "1 ready" in replicas
    assert busy.request_id in page(alice, here(busy.deployment, "?tab=requests"))
    events = page(alice, here(busy.deployment, "?tab=events"))
    assert "Smoke passed" in events
    assert "Deployed chat" in events
    page(alice, here(busy.deployment, "?tab=secrets"), status=404)


def test_a_resting_deployment_says_why_since_when_and_what_a_start_takes(alice, chat):
    asleep = SimpleNamespace(
        replica_id="rep_9", state=ReplicaState.ASLEEP, cause="idle for 5 min", deployment_id=chat.id, eta_ms=420
    )
    costs = (TierCost(Tier.ASLEEP, 420, 610, 12), TierCost(Tier.STORE, 18_340, 19_800, 2))
    report_node([asleep], costs={chat.id: costs})
    for url in ("/t/acme/deployments", here(chat)):
        text = page(alice, url)
        assert "Asleep" in text
        assert "Idle for 5 min" in text
        assert "420 ms" in text
        assert "18.3 s" in text
    assert "1 asleep" in page(alice, here(chat, "?tab=replicas"))
    assert "All well" in page(alice, "/t/acme/")


def test_the_list_tells_how_often_each_was_asked(alice, busy):
    row = page(alice, "/t/acme/deployments").split("<tr>")[2]
    assert 'data-label="Requests, 24 h" class="num">4<' in row


def test_a_shared_deployment_tells_nothing_of_its_replicas(signed_in, proven, busy):
    services.set_grant(actor=PLATFORM, deployment_id=busy.deployment.id, grantee_slug="evil", share=Share())
    mallory = proven("mallory")
    theirs = f"/t/evil/deployments/{busy.deployment.id}"
    text = page(mallory, theirs)
    assert "acme/chat" in text
    assert "rep_0" not in text
    assert "Settings" not in text
    for part in ("?tab=events", "?tab=replicas", "/pause", "/settings", "/delete"):
        page(mallory, f"{theirs}{part}", status=404)
    assert busy.request_id not in page(mallory, f"{theirs}?tab=requests")


def test_pausing_wants_the_name_and_resuming_brings_it_back(alice, busy):
    assert "acme" in page(alice, here(busy.deployment, "/pause"))
    assert alice.post(here(busy.deployment, "/pause"), {"confirm": "chat "}).status_code == 422
    assert alice.post(here(busy.deployment, "/pause"), {"confirm": "chat"}).status_code == 302
    assert "is paused" in page(alice, here(busy.deployment))
    assert "chat" not in page(alice, "/t/acme/playground").split('id="model"')[-1].split("</select>")[0]
    assert alice.post(here(busy.deployment, "/resume")).status_code == 302


def test_settings_are_saved_told_in_words_and_in_the_events(alice, chat):
    times = {"window0-begin": "08:00", "window0-end": "00:00", "window0-replicas": "1"}
    answer = alice.post(here(chat, "/settings"), FORM | times | {"window0-days": ["0", "1", "2", "3", "4"]})
    assert answer.status_code == 302, answer.content.decode()
    saved = stored(chat)
    assert (saved.min_replicas, saved.max_replicas, saved.max_num_seqs) == (0, 2, 16)
    assert (saved.dtype, saved.kv_dtype) == ("bf16", "int8")
    assert (saved.asleep_after_s, saved.warm_after_s, saved.disk_after_s) == (300, 3600, None)
    assert saved.keep_warm == (KeepWarm((0, 1, 2, 3, 4), 480, 1440, 1),)
    overview = page(alice, here(chat))
    assert "Asleep after 5 min, warm after 1 hour without a call." in overview
    assert "Mon–Fri, 08:00–24:00 UTC: at least 1 replica ready" in overview
    events = page(alice, here(chat, "?tab=events"))
    assert "Changed the settings of chat" in events
    assert "<del>fp32</del> → <ins>bf16</ins>" in events


def test_the_form_shows_what_is_set_and_a_time_without_days_goes_away(alice, chat, personas):
    bob, odd = member_actor(personas.bob, "acme"), services.Changes(asleep_after_s=77, schedules=[SUNDAY])
    services.configure_deployment(actor=bob, deployment_id=chat.id, revision=1, changes=odd)
    text = page(alice, here(chat, "/settings"))
    assert '<option value="77" selected>after 77 s</option>' in text
    assert 'name="window0-begin" value="10:00"' in text
    times = {"window0-begin": "10:00", "window0-end": "12:00", "window0-replicas": "1"}
    kept = FORM | times | {"revision": "2", "asleep_after_s": "77"}
    assert alice.post(here(chat, "/settings"), kept).status_code == 302
    assert stored(chat).keep_warm == ()
    assert stored(chat).asleep_after_s == 77


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"min_replicas": ""}, "This field is required"),
        ({"min_replicas": "3"}, "at least min_replicas"),
        ({"asleep_after_s": "14400"}, "it is the colder tier"),
        ({"dtype": "int3"}, "int3 is not one of the available choices"),
        ({"kv_dtype": "int4"}, "int4 is not one of the available choices"),
        ({"asleep_after_s": "-1"}, "-1 is not one of the available choices"),
        ({"max_model_len": "100000"}, "512"),
        ({"kv_memory_mb": "0"}, "from 1 to"),
        ({"max_num_seqs": "9" * 30}, "from 1 to"),
        ({"window0-days": ["0"]}, "This is needed where a day is chosen"),
        (
            {"window0-days": ["0"], "window0-begin": "20:00", "window0-end": "06:00", "window0-replicas": "1"},
            "What goes over midnight takes two",
        ),
        ({"min_replicas": "5", "max_replicas": "5"}, "4 are allowed"),
        ({"revision": "7"}, "were changed since you read them"),
        ({"revision": "x"}, "were changed since you read them"),
        ({"revision": "1" * 5_000}, "were changed since you read them"),
    ],
)
def test_refused_settings_come_back_with_the_fault_and_change_nothing(fields, fault, alice, chat):
    answer = alice.post(here(chat, "/settings"), FORM | fields)
    assert answer.status_code == 422
    assert fault in answer.content.decode()
    assert stored(chat).revision == 1


def test_deleting_names_dependents_and_wants_the_password_and_the_name(alice, proven, chat, personas):
    url = here(chat, "/delete")
    assert alice.get(url)["Location"] == f"/account/reauthenticate/?next={url}"
    issue_key(actor=member_actor(personas.bob, "acme"), name="checkout", deployment_ids=[chat.id])
    services.set_grant(actor=PLATFORM, deployment_id=chat.id, grantee_slug="evil", share=Share())
    owner = proven("alice")
    text = page(owner, url)
    assert "checkout" in text
    assert "evil" in text
    for wrong in ("", "Chat", "chat "):
        assert owner.post(url, {"confirm": wrong}).status_code == 422
    assert owner.post(url, {"confirm": "chat"})["Location"] == "/t/acme/deployments"
    page(owner, here(chat), status=404)


def test_a_version_is_deployed_from_the_form(alice, personas):
    version, unready = make_version(personas.acme), make_version(personas.acme, "raw", VersionState.REJECTED)
    text = page(alice, f"/t/acme/deployments/new?version={version.id}")
    assert f'value="{version.id}" selected' in text
    assert unready.id not in text
    answer = alice.post("/t/acme/deployments/new", NEW | {"version_id": version.id})
    made = answer["Location"].rsplit("/", 1)[1]
    saved = stored(SimpleNamespace(pk=made))
    assert (saved.name, saved.min_replicas, saved.asleep_after_s, saved.kv_memory_mb) == ("fresh", 0, 300, 8)
    assert "is deployed" in page(alice, answer["Location"])


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"name": "Not A Name"}, "Use 2 to 64 of"),
        ({"name": "chat"}, "exists already"),
        ({"version_id": "ver_of_another"}, "is not one of the available choices"),
        ({"idle": "forever"}, "is not one of the available choices"),
        ({"max_replicas": "65"}, "at most 64"),
    ],
)
def test_a_deployment_that_cannot_be_is_refused_at_its_field(fields, fault, alice, chat, personas):
    version = make_version(personas.acme)
    answer = alice.post("/t/acme/deployments/new", NEW | {"version_id": version.id} | fields)
    assert answer.status_code == 422
    assert fault in answer.content.decode()


def test_without_a_ready_version_there_is_nothing_to_choose(alice):
    assert "No version is ready" in page(alice, "/t/acme/deployments/new")


def test_the_checklist_ticks_itself_up_to_the_first_request(alice: Client, personas):
    def done() -> int:
        return page(alice, "/t/acme/start").count('<li class="done">')

    assert done() == 0
    version = make_version(personas.acme)
    assert done() == 1
    deploy(personas.acme, version=version)
    assert done() == 2
    issue_key(actor=member_actor(personas.bob, "acme"), name="first")
    assert done() == 3
    assert "data-poll" in page(alice, "/t/acme/start")


def test_a_finished_checklist_asks_no_more(alice, busy):
    text = page(alice, "/t/acme/start")
    assert "All done" in text
    assert "Seen: req_" in text
    assert re.search(r'href="/t/acme/requests/req_\w+">See where its time went', text)
    assert "data-poll" not in text


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("curl", "curl -N"),
        ("python", "from openai import"),
        ("javascript", "await client.chat"),
        ("x", "curl -N"),
    ],
)
def test_the_code_names_the_chosen_model(language, words, alice, personas):
    deploy(personas.acme, name="first")
    deploy(personas.acme, name="second")
    text = page(alice, f"/t/acme/start?lang={language}&model=second").replace("&quot;", '"')
    assert words in text
    assert '"second"' in text
    assert '"first"' in page(alice, "/t/acme/start?model=nonsense").replace("&quot;", '"')
