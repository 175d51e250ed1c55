"""What programs get from ``/api/v1``: bodies and errors. Who may reach which route is the matrix of tests/isolation."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from django.test import Client
from domain import PLATFORM, deploy, make_version
from spool_records import AT_MS, Life

from controlplane.deployments.fleet import report_replicas
from controlplane.metering import services as metering
from dataplane.contracts.replica import FleetReport, ReplicaTable, Tier, TierCost
from dataplane.contracts.usage import Outcome
from tenants.actor import acting_as, member_actor
from tenants.models import Member
from tenants.roles import Role, Scope
from tenants.services import issue_key


@pytest.fixture
def alice(personas) -> Client:
    client = Client()
    client.force_login(personas.alice)
    return client


@pytest.fixture
def root(personas) -> Client:
    client = Client()
    client.force_login(personas.root)
    return client


@pytest.fixture
def program(personas) -> Client:
    """A program with a key of acme that may read and deploy."""
    issued = issue_key(actor=member_actor(personas.alice, "acme"), name="ci", scopes=[Scope.READ, Scope.DEPLOYMENTS])
    return Client(headers={"authorization": f"Bearer {issued.text}"})


def send(client: Client, method: str, path: str, body: object = None, status: int = 200) -> dict:
    answer = client.generic(
        method, f"/api/v1{path}", b"" if body is None else encoded(body), content_type="application/json"
    )
    assert answer.status_code == status, answer.content
    return answer.json() if answer.content else {}


def encoded(body: object) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


def error(client: Client, method: str, path: str, body: object = None, status: int = 422) -> dict:
    return send(client, method, path, body, status)["error"]


def test_a_key_knows_its_tenant_and_what_it_may_do(program):
    me = send(program, "GET", "/me")
    assert (me["kind"], me["tenant"]["slug"], me["role"]) == ("key", "acme", None)
    assert "deployments.write" in me["permissions"]
    assert me["limits"]["requests_per_minute"] is None


def test_a_key_is_issued_shown_once_rolled_limited_and_revoked(alice):
    issued = send(alice, "POST", "/keys", {"name": "app", "scopes": ["inference", "read"]}, 201)
    key_id = issued["key"]["id"]
    assert issued["text"].startswith(issued["key"]["prefix"])
    assert issued["text"] not in str(send(alice, "GET", "/keys"))
    limits = {"requests_per_minute": 5, "tokens_per_minute": None, "concurrent_requests": 2, "max_request_tokens": None}
    assert send(alice, "PUT", f"/keys/{key_id}/limits", limits) == limits
    assert send(alice, "GET", f"/keys/{key_id}")["limits"] == limits
    rolled = send(alice, "POST", f"/keys/{key_id}/roll", {"overlap_s": 0})
    assert rolled["text"] != issued["text"]
    assert rolled["key"]["id"] == key_id
    assert Client(headers={"authorization": f"Bearer {issued['text']}"}).get("/api/v1/me").status_code == 401
    assert Client(headers={"authorization": f"Bearer {rolled['text']}"}).get("/api/v1/me").status_code == 200
    assert send(alice, "POST", f"/keys/{key_id}/revoke")["revoked_at"] is not None
    assert error(alice, "POST", f"/keys/{key_id}/revoke", status=409)["code"] == "conflict"
    assert Client(headers={"authorization": f"Bearer {rolled['text']}"}).get("/api/v1/me").status_code == 401


def test_a_secret_is_not_cached(alice):
    answer = alice.post("/api/v1/keys", {"name": "app"}, content_type="application/json")
    assert answer["Cache-Control"] == "no-store"


def test_models_and_versions_are_told_with_their_files(program, personas):
    version = make_version(personas.acme)
    (model,) = send(program, "GET", "/models")["data"]
    assert (model["name"], model["num_versions"]) == ("tiny", 1)
    assert send(program, "GET", f"/models/{model['id']}")["id"] == model["id"]
    (listed,) = send(program, "GET", f"/models/{model['id']}/versions")["data"]
    detail = send(program, "GET", f"/versions/{version.id}")
    assert listed.items() <= detail.items()
    assert (detail["checks"], detail["dependents"], detail["derived_from"]) == ([], [], None)
    assert (listed["model"], listed["digest"]) == ("tiny", version.digest)
    assert [file["name"] for file in listed["files"]] == ["config.json", "model.safetensors"]


def test_a_program_deploys_pauses_shares_and_deletes(program, personas):
    version = make_version(personas.acme)
    body = {"name": "chat", "version_id": version.id, "engine": {"kv_memory_mb": 1, "block_size": 16}}
    made = send(program, "POST", "/deployments", body, 201)
    assert (made["name"], made["state"], made["engine"]["dtype"]) == ("chat", "active", "fp32")
    assert [(arm["model"], arm["weight"]) for arm in made["arms"]] == [("tiny", 100)]
    path = f"/deployments/{made['id']}"
    assert send(program, "POST", f"{path}/pause")["state"] == "paused"
    assert send(program, "POST", f"{path}/resume")["state"] == "active"
    share = {"guarantee_tokens": 100, "cap_tokens": 2000, "weight": 2}
    assert send(program, "PUT", f"{path}/shares", share)["tenant"] == "acme"
    assert send(program, "PUT", f"{path}/shares", share | {"pace_ms": 40})["pace_ms"] == 40
    assert list(error(program, "PUT", f"{path}/shares", share | {"pace_ms": 1001})["fields"]) == ["pace_ms"]
    pool = send(program, "GET", f"{path}/shares")
    assert (pool["pool_tokens"], pool["grants"][0]["guarantee_tokens"]) == (2048, 100)
    refusal = error(program, "PUT", f"{path}/shares", share | {"guarantee_tokens": 9000, "cap_tokens": None})
    assert refusal["code"] == "does_not_fit"
    assert "2048 tokens" in refusal["message"]
    assert send(program, "GET", f"{path}/replicas") == {"data": []}
    assert error(program, "POST", "/deployments", body, 409)["code"] == "conflict"
    send(program, "DELETE", path, status=204)
    assert send(program, "GET", "/deployments") == {"data": []}


def test_limits_of_serving_are_set_by_the_platform_and_a_refusal_names_them(program, root, personas):
    limits = {"deployments": 1, "kept_replicas": 2}
    assert send(root, "PUT", "/platform/tenants/acme/serving", limits) == limits
    assert (
        "kept_replicas" in error(root, "PUT", "/platform/tenants/acme/serving", limits | {"kept_replicas": 0})["fields"]
    )
    version = make_version(personas.acme)
    body = {"name": "chat", "version_id": version.id, "engine": {"kv_memory_mb": 1}, "max_replicas": 64}
    refusal = error(program, "POST", "/deployments", body | {"min_replicas": 3})
    assert (refusal["code"], list(refusal["fields"])) == ("serving_limit", ["min_replicas"])
    assert "2 are allowed" in refusal["message"]
    send(program, "POST", "/deployments", body | {"min_replicas": 2}, 201)
    assert (
        "1 deployments" in error(program, "POST", "/deployments", body | {"name": "more", "min_replicas": 0})["message"]
    )


def test_a_guest_is_told_a_name_to_call_and_no_settings(program, root, personas):
    mallory = Client()
    mallory.force_login(personas.mallory)
    deployment = deploy(personas.acme)
    share = {"guarantee_tokens": 0, "cap_tokens": None, "weight": 1}
    send(root, "PUT", f"/platform/deployments/{deployment.id}/grants/evil", share)
    own = send(program, "GET", f"/deployments/{deployment.id}")
    hidden = {"engine", "min_replicas", "max_replicas", "idle", "schedules", "revision"}
    (listed,) = send(mallory, "GET", "/deployments")["data"]
    for told in (listed, send(mallory, "GET", f"/deployments/{deployment.id}")):
        assert (told["name"], told["arms"], told["is_own"]) == ("acme/chat", [], False)
        assert {name for name in own if told[name] is None and own[name] is not None} == hidden


def test_usage_before_the_calendar_begins_is_refused_by_name(program):
    for until in ("0001-01-01", "0001-01-01T00:00:00Z"):
        assert "until" in error(program, "GET", f"/usage?until={until}")["fields"]


def test_a_program_changes_settings_of_what_it_has_read(program, personas):
    version = make_version(personas.acme)
    weekdays = {"days": [0, 1, 2, 3, 4], "from_minute": 480, "to_minute": 1080, "min_replicas": 1}
    body = {
        "name": "chat", "version_id": version.id, "engine": {"kv_memory_mb": 1, "block_size": 16}, "min_replicas": 0,
        "idle": {"asleep_after_s": 60}, "schedules": [weekdays],
    }  # fmt: skip
    made = send(program, "POST", "/deployments", body, 201)
    path = f"/deployments/{made['id']}"
    never = {"asleep_after_s": None, "warm_after_s": None, "disk_after_s": None, "cold_wait_s": 30}
    assert (made["revision"], made["idle"], made["schedules"]) == (1, never | {"asleep_after_s": 60}, [weekdays])
    assert (made["standing"], made["start_eta_ms"]) == ("starting", None)
    changes = {
        "revision": 1, "engine": {"kv_memory_mb": 2, "max_model_len": 128}, "idle": {"disk_after_s": 600},
        "schedules": [], "max_replicas": 2,
    }  # fmt: skip
    changed = send(program, "PATCH", path, changes)
    assert changed["engine"] == made["engine"] | {"kv_memory_mb": 2, "max_model_len": 128}
    assert (changed["idle"], changed["schedules"]) == (never | {"asleep_after_s": 60, "disk_after_s": 600}, [])
    assert (changed["min_replicas"], changed["max_replicas"], changed["revision"]) == (0, 2, 2)
    assert "Read them again" in error(program, "PATCH", path, changes, 409)["message"]
    assert "revision" in error(program, "PATCH", path, {})["fields"]
    assert "weights" in error(program, "PATCH", path, {"revision": 2, "weights": 1})["fields"]
    assert "idle.colour" in error(program, "PATCH", path, {"revision": 2, "idle": {"colour": 1}})["fields"]
    refusal = error(program, "PATCH", path, {"revision": 2, "idle": {"warm_after_s": 30}})
    assert "asleep_after_s" in refusal["fields"]["warm_after_s"]


def test_the_story_and_the_start_costs_of_a_deployment_are_told(alice, program, personas):
    deployment = deploy(personas.acme)
    path = f"/deployments/{deployment.id}"
    send(alice, "POST", f"{path}/pause")
    pause, create = send(alice, "GET", f"{path}/events")["data"]
    assert (pause["kind"], pause["old"], pause["new"]) == ("state", "active", "paused")
    assert (pause["cause"], pause["actor"], create["cause"]) == (
        "deployment.pause", "alice@acme.example", "deployment.create",
    )  # fmt: skip
    assert send(program, "GET", f"{path}/events")["data"][0]["actor"] == ""
    assert send(program, "GET", f"{path}/costs") == {"data": []}
    table = ReplicaTable(node="n1", number=1, at_ms=AT_MS, replicas=())
    report_replicas(
        actor=PLATFORM,
        report=FleetReport(table=table, events=(), costs={deployment.id: (TierCost(Tier.ASLEEP, 300, 450, 9),)}),
    )
    assert send(program, "GET", f"{path}/costs") == {
        "data": [{"tier": "asleep", "p50_ms": 300, "p95_ms": 450, "samples": 9}]
    }


def test_a_deployment_that_is_needed_is_deleted_once_its_name_is_said(alice, personas):
    deployment = deploy(personas.acme)
    path = f"/deployments/{deployment.id}"
    issue_key(actor=member_actor(personas.alice, "acme"), name="ci", deployment_ids=[deployment.id])
    refusal = error(alice, "DELETE", path, status=409)
    assert refusal["code"] == "has_dependents"
    assert "the key ci" in refusal["message"]
    assert "confirm" in error(alice, "DELETE", f"{path}?confirm=chats")["fields"]
    send(alice, "DELETE", f"{path}?confirm=chat", status=204)


def test_usage_is_told_by_key_version_deployment_and_day(program, personas):
    deployment = deploy(personas.acme)
    for tokens, key in ((10, "key_a"), (3, "key_b")):
        life = Life(personas.acme.id, key_id=key, deployment_id=deployment.id)
        metering.ingest(actor=PLATFORM, records=life.whole(tokens))
    metering.ingest(actor=PLATFORM, records=Life(personas.evil.id).whole(99))
    metering.roll_up(actor=PLATFORM)
    day = datetime.fromtimestamp(AT_MS / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    span = f"since={day:%Y-%m-%d}T00:00:00Z&until={day + timedelta(days=1):%Y-%m-%d}T00:00:00Z"
    by_key = send(program, "GET", f"/usage?by=key&{span}")["data"]
    assert [(line["label"], line["completion_tokens"]) for line in by_key] == [("key_a", 10), ("key_b", 3)]
    for by, label in (("deployment", deployment.id), ("version", "ver_1"), ("day", day.isoformat())):
        (line,) = send(program, "GET", f"/usage?by={by}&{span}")["data"]
        assert (line["label"], line["requests"], line["prompt_tokens"], line["completion_tokens"]) == (label, 2, 14, 13)
    assert error(program, "GET", f"/usage?by=tenant&{span}")["fields"].keys() == {"by"}
    assert error(program, "GET", "/usage?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z")["fields"]


def test_requests_are_told_page_by_page_newest_first(program, personas):
    lives = [Life(personas.acme.id) for _ in range(5)]
    for life in lives:
        metering.ingest(actor=PLATFORM, records=life.whole())
    failed = Life(personas.acme.id)
    metering.ingest(actor=PLATFORM, records=[failed.closed(0, Outcome.FAILED, error_code="replica_lost")])
    page = send(program, "GET", "/requests?limit=4")["data"]
    rest = send(program, "GET", f"/requests?before={page[-1]['id']}")["data"]
    assert [row["id"] for row in page + rest] == [life.request_id for life in (failed, *reversed(lives))]
    (only,) = send(program, "GET", "/requests?failed=true")["data"]
    assert (only["id"], only["error_code"], only["completion_tokens"]) == (failed.request_id, "replica_lost", 0)
    assert send(program, "GET", f"/requests/{failed.request_id}") == only
    assert len(send(program, "GET", "/requests?failed=false&key_id=key_1")["data"]) == 5


def test_the_platform_lists_tenants_limits_them_and_lets_them_in(root, alice, personas):
    listed = send(root, "GET", "/platform/tenants")["data"]
    assert [tenant["slug"] for tenant in listed] == ["acme", "evil"]
    limits = {"requests_per_minute": 9, "tokens_per_minute": 1, "concurrent_requests": 1, "max_request_tokens": 1}
    assert send(root, "PUT", "/platform/tenants/acme/limits", limits) == limits
    assert send(alice, "GET", "/me")["limits"] == limits
    deployment = deploy(personas.acme)
    share = {"guarantee_tokens": 0, "cap_tokens": None, "weight": 1}
    path = f"/platform/deployments/{deployment.id}/grants/evil"
    assert send(root, "PUT", path, share)["tenant"] == "evil"
    send(root, "DELETE", path, status=204)
    assert error(root, "DELETE", path, status=404)["code"] == "not_found"
    assert send(root, "GET", "/platform/fleet") == {"data": []}


def test_somebody_in_two_tenants_says_which(alice, personas):
    with acting_as(PLATFORM):
        Member.objects.create(tenant=personas.evil, user=personas.alice, role=Role.VIEWER)
    assert "acme, evil" in error(alice, "GET", "/me")["message"]
    assert send(alice, "GET", "/me?tenant=evil")["role"] == "viewer"
    assert error(alice, "GET", "/me?tenant=other", status=404)["code"] == "not_found"


def test_a_key_speaks_for_its_own_tenant_only(program):
    assert send(program, "GET", "/me?tenant=acme")["tenant"]["slug"] == "acme"
    assert error(program, "GET", "/me?tenant=evil", status=404)["code"] == "not_found"


def test_a_person_needs_the_csrf_token_and_a_program_does_not(personas, program):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(personas.alice)
    refusal = error(browser, "POST", "/keys", {"name": "app"}, 403)
    assert "CSRF" in refusal["message"]
    program.handler.enforce_csrf_checks = True
    assert error(program, "POST", "/deployments", {})["code"] == "invalid"


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"name": "app", "colour": "red"}, 422, "invalid", "colour"),
        ({"name": ""}, 422, "invalid", "name"),
        ({"name": "a\0b"}, 422, "invalid", "name"),
        ({"name": "app", "scopes": []}, 422, "invalid", "scopes"),
        ({"name": "app", "scopes": ["root"]}, 422, "invalid", "scopes.0"),
        ({"name": "app", "lifetime_days": 0}, 422, "invalid", "lifetime_days"),
        ({"name": "app", "deployment_ids": ["x"]}, 422, "invalid", "deployment_ids"),
        ({"name": 7}, 422, "invalid", "name"),
        ({"name": "app", "lifetime_days": "7"}, 422, "invalid", "lifetime_days"),
        ({"name": "app", "lifetime_days": 7.0}, 422, "invalid", "lifetime_days"),
        ({"name": "app", "lifetime_days": True}, 422, "invalid", "lifetime_days"),
        ({"name": "app", "deployment_ids": [7]}, 422, "invalid", "deployment_ids.0"),
        ([], 422, "invalid", ""),
        (b'{"name": NaN}', 400, "parse_error", None),
        (b'{"name": "a", "name": "b"}', 400, "parse_error", None),
        (b'{"name": "\\ud800"}', 400, "parse_error", None),
        (b"[" * 100_000, 400, "parse_error", None),
        (b"\xff\xfe", 400, "parse_error", None),
        (b'{"name": "' + b"x" * 1_100_000 + b'"}', 413, "body_too_large", None),
    ],
)
def test_a_bad_body_is_refused_by_name(alice, body, status, code, field):
    refusal = error(alice, "POST", "/keys", body, status)
    assert refusal["code"] == code
    assert refusal["message"]
    assert refusal["request_id"].startswith("req_")
    assert set(refusal["fields"]) == (set() if field is None else {field})


def test_every_error_has_the_one_shape(alice, program):
    anonymous = Client()
    answer = anonymous.get("/api/v1/keys")
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, 'Bearer realm="pagoda"')
    for client, method, path, status, code in (
        (anonymous, "GET", "/keys", 401, "unauthenticated"),
        (program, "GET", "/keys", 403, "forbidden"),
        (alice, "GET", "/keys/key_nothing", 404, "not_found"),
        (alice, "PATCH", "/keys", 405, "method_not_allowed"),
        (Client(headers={"authorization": "Bearer pgd_live_junk"}), "GET", "/me", 401, "unauthenticated"),
    ):
        body = error(client, method, path, status=status)
        assert (body["code"], set(body)) == (code, {"code", "message", "fields", "request_id"})
    wrong_type = alice.post("/api/v1/keys", "name=app", content_type="application/x-www-form-urlencoded")
    assert (wrong_type.status_code, wrong_type.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_an_unknown_query_is_refused_by_name(program):
    assert error(program, "GET", "/usage?colour=red")["fields"].keys() == {"colour"}
    assert error(program, "GET", "/requests?limit=0")["fields"].keys() == {"limit"}
    assert error(program, "GET", "/rollouts?deployment=dep_1")["fields"].keys() == {"deployment"}
    assert error(program, "GET", "/me?format=xml")["fields"].keys() == {"format"}


def test_what_no_view_answers_has_the_shape_of_every_error(program):
    for path, status, code in (("/api/v1/colours", 404, "not_found"), ("/api/v1/me?x=%00", 400, "invalid_address")):
        answer = program.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert answer.json()["error"]["request_id"] == answer["x-request-id"]


def test_a_failure_of_ours_is_told_with_its_request_and_nothing_else(program, monkeypatch):
    def broken(**_: object) -> None:
        raise RuntimeError("the secret cause")

    monkeypatch.setattr("controlplane.registry.selectors.list_models", broken)
    program.raise_request_exception = False
    answer = program.get("/api/v1/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert answer.json()["error"]["request_id"] == answer["x-request-id"]
    assert b"secret cause" not in answer.content


def test_a_key_is_bound_to_deployments_that_its_tenant_may_call_only(alice, personas):
    own, foreign = deploy(personas.acme), deploy(personas.evil)
    for unknown in (foreign.id, own.id.translate(str.maketrans("0123456789", "9876543210"))):
        refusal = error(alice, "POST", "/keys", {"name": "app", "deployment_ids": [own.id, unknown]})
        assert refusal["fields"] == {"deployment_ids": f"There is no deployment {unknown} that you may call."}
    issued = send(alice, "POST", "/keys", {"name": "app", "deployment_ids": [own.id]}, 201)
    assert issued["key"]["deployment_ids"] == [own.id]
