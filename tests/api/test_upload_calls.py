"""A program brings a version over the API, part by part, as it would with curl; the parts go through the ASGI door."""

import asyncio
import hashlib
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from django.test import Client
from object_store import BUCKET, running_object_store
from uploading import FILES, PART_BYTES, part_of

from controlplane.api.part_receiver import PartReceiver
from tenants.actor import member_actor
from tenants.roles import Scope
from tenants.services import issue_key


@pytest.fixture(autouse=True)
def small_parts(settings, tmp_path: Path) -> None:
    settings.PAGODA_UPLOAD_PART_BYTES = PART_BYTES
    settings.PAGODA_HOME = tmp_path


@pytest.fixture
def program(personas) -> Client:
    issued = issue_key(actor=member_actor(personas.alice, "acme"), name="ci", scopes=[Scope.DEPLOYMENTS])
    return Client(headers={"authorization": f"Bearer {issued.text}"})


def call(client: Client, method: str, path: str, body: object = None, status: int = 200) -> dict:
    raw = b"" if body is None else msgspec.json.encode(body)
    answer = client.generic(method, f"/api/v1{path}", raw, content_type="application/json")
    assert answer.status_code == status, answer.content
    return answer.json() if answer.content else {}


def announced() -> dict:
    return {"files": [{"name": name, "size_bytes": len(data)} for name, data in FILES.items()]}


def address(program: Client, version_id: str, name: str, number: int) -> dict:
    piece = part_of(FILES[name], number)
    part = {"file": name, "number": number, "size_bytes": len(piece), "sha256": hashlib.sha256(piece).hexdigest()}
    return call(program, "POST", f"/uploads/{version_id}/parts", part)


def put(target: dict, piece: bytes) -> httpx.Response:
    """Send a part to the address it was given: ours, or the bucket's."""

    async def ours() -> httpx.Response:
        async def nothing_else(*_: object) -> None:
            raise AssertionError("a signed address is not for Django")

        transport = httpx.ASGITransport(app=PartReceiver(nothing_else))
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.request(target["method"], target["url"], headers=target["headers"], content=piece)

    if urlsplit(target["url"]).hostname == "testserver":
        return asyncio.run(ours())
    with httpx.Client(trust_env=False) as client:
        return client.request(target["method"], target["url"], headers=target["headers"], content=piece)


def bring(program: Client) -> dict:
    """Upload with one cut: all parts but one, then what is asked for."""
    upload = call(program, "POST", "/models/tiny/uploads", announced(), 201)
    version_id = upload["version_id"]
    assert (upload["number"], upload["state"], upload["part_bytes"]) == (1, "uploading", PART_BYTES)
    for file in upload["files"]:
        for number in range(1, file["parts"] + 1):
            if (file["name"], number) != ("model.safetensors", 2):
                answer = put(address(program, version_id, file["name"], number), part_of(FILES[file["name"]], number))
                assert answer.status_code == 200
    refused = call(program, "POST", f"/uploads/{version_id}/complete", status=422)["error"]
    assert (refused["code"], refused["fields"]) == ("parts_missing", {"model.safetensors": "part 2"})
    resumed = call(program, "GET", f"/uploads/{version_id}")
    assert [[part["number"] for part in file["arrived"]] for file in resumed["files"]] == [[1], [1, 3]]
    put(address(program, version_id, "model.safetensors", 2), part_of(FILES["model.safetensors"], 2))
    completed = call(program, "POST", f"/uploads/{version_id}/complete")
    assert completed == {"version_id": version_id, "state": "validating"}
    return call(program, "GET", f"/uploads/{version_id}")


def test_a_version_is_brought_to_the_local_store(program):
    upload = bring(program)
    assert (upload["state"], upload["expires_at"]) == ("validating", None)


def test_a_version_is_brought_to_a_bucket_by_the_same_calls(program, settings, tmp_path):
    with running_object_store(tmp_path / "buckets") as server:
        settings.PAGODA_STORE_URL, settings.PAGODA_S3_ENDPOINT = f"s3://{BUCKET}/pagoda", server.endpoint
        assert bring(program)["state"] == "validating"


def test_wrong_bytes_are_refused_where_they_are_sent(program):
    upload = call(program, "POST", "/models/tiny/uploads", announced(), 201)
    target = address(program, upload["version_id"], "config.json", 1)
    assert put(target, b"x" * len(FILES["config.json"])).json()["error"]["code"] == "part_mismatch"
    assert put(target, FILES["config.json"] + b"x").json()["error"]["code"] == "forbidden"
    assert put(target | {"headers": {}}, FILES["config.json"]).json()["error"]["code"] == "forbidden"


def test_an_upload_is_given_up(program):
    upload = call(program, "POST", "/models/tiny/uploads", announced(), 201)
    target = address(program, upload["version_id"], "config.json", 1)
    call(program, "DELETE", f"/uploads/{upload['version_id']}", status=204)
    assert put(target, FILES["config.json"]).json()["error"]["code"] == "upload_ended"
    assert call(program, "DELETE", f"/uploads/{upload['version_id']}", status=409)["error"]["code"] == "conflict"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "files"),
        ({"files": []}, "files"),
        ({"files": [{"name": "../up", "size_bytes": 1}]}, "../up"),
        ({"files": [{"name": "a"}]}, "files.0.size_bytes"),
        ({"files": [{"name": "a", "size_bytes": 1, "sha256": "x"}]}, "files.0.sha256"),
        ({"files": [{"name": "a", "size_bytes": 1}], "number": 7}, "number"),
        ({"files": [{"name": "a\u0000", "size_bytes": 1}]}, "files.0.name"),
    ],
)
def test_what_is_wrong_with_an_announcement_is_named(program, body, field):
    fault = call(program, "POST", "/models/tiny/uploads", body, 422)["error"]
    assert field in fault["fields"]


def test_what_is_kept_is_told_and_its_limits_are_the_platforms_to_set(program, personas):
    call(program, "POST", "/models/tiny/uploads", announced(), 201)
    root = Client()
    root.force_login(personas.root)
    limits = {"stored_bytes": 3_000, "stored_files": None, "open_uploads": None}
    assert call(root, "PUT", "/platform/tenants/acme/storage", limits) == limits
    kept = call(program, "GET", "/storage")
    assert (kept["stored_bytes"], kept["open_uploads"], kept["limits"]["stored_bytes"]) == (2_568, 1, 3_000)
    fault = call(program, "POST", "/models/tiny/uploads", announced(), 409)["error"]
    assert fault["code"] == "storage_limit"


def test_an_address_that_nobody_signed_is_refused_by_django_too(program):
    upload = call(program, "POST", "/models/tiny/uploads", announced(), 201)
    answer = program.put(f"/api/v1/uploads/{upload['version_id']}/files/config.json/parts/1", b"x" * 8)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
