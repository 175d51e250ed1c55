import msgspec
import pytest
from django.conf import settings as django_settings
from domain import PLATFORM, deploy
from spool_records import Life

from controlplane.api import internal
from controlplane.deployments.models import ReplicaRow
from controlplane.metering.models import UsageRow
from dataplane.contracts import catalog as contract
from dataplane.contracts.replica import FleetReport, ReplicaReport, ReplicaState, ReplicaTable
from dataplane.contracts.usage import UsageBatch, UsageReceipt
from tenants.actor import acting_as, system_actor
from tenants.services import keys


@pytest.fixture
def process(client):
    client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {django_settings.PAGODA_INTERNAL_SECRET}"
    return client


def post(client, path: str, message: msgspec.Struct):
    return client.post(path, msgspec.msgpack.encode(message), content_type="application/msgpack")


def test_a_reader_gets_the_catalog_once_and_then_304_until_something_changes(process, personas):
    deploy(personas.acme)
    first = contract.decode(process.get("/internal/catalog?after=0").content)
    assert list(contract.callable_names(first, personas.acme.id)) == ["chat"]
    assert process.get(f"/internal/catalog?after={first.number}").status_code == 304
    issued = keys.issue_key(actor=system_actor("tests", personas.acme), name="app")
    second = contract.decode(process.get(f"/internal/catalog?after={first.number}").content)
    assert (second.number, list(second.keys)) == (first.number + 1, [issued.key.lookup])
    keys.revoke_key(actor=system_actor("tests", personas.acme), key_id=issued.key.id)
    assert contract.decode(process.get(f"/internal/catalog?after={second.number}").content).keys == {}


def test_a_reader_that_is_ahead_after_a_restore_gets_the_catalog(process, personas):
    assert process.get("/internal/catalog?after=999").status_code == 200
    assert process.get("/internal/catalog").status_code == 200


@pytest.mark.parametrize("after", ["x", "-1", "1e9", "9" * 30, "٣", ""])
def test_a_number_that_is_none_is_refused(process, personas, after):
    assert process.get("/internal/catalog", {"after": after}).status_code == 400


def test_an_unchanged_catalog_costs_two_reads(process, personas, django_assert_num_queries):
    number = contract.decode(process.get("/internal/catalog").content).number
    with django_assert_num_queries(6):  # savepoint, set the actor, the number, what waits, unset, release
        process.get(f"/internal/catalog?after={number}")


def test_a_batch_is_taken_once_and_receipted(process, personas):
    life = Life(personas.acme.id)
    batch = UsageBatch(records=tuple(life.whole()))
    for expected in (UsageReceipt(accepted=4, duplicates=0), UsageReceipt(accepted=0, duplicates=4)):
        answer = post(process, "/internal/usage", batch)
        assert msgspec.json.decode(answer.content, type=UsageReceipt) == expected
    with acting_as(PLATFORM):
        assert UsageRow.objects.get().state == "settled"


def test_a_report_is_taken(process, personas):
    replica = ReplicaReport(
        replica_id="rep_1", node="n1", state=ReplicaState.WARM_IDLE, cause="started", since_ms=1, socket="/run/x"
    )
    report = FleetReport(table=ReplicaTable(node="n1", number=1, at_ms=1, replicas=(replica,)), events=())
    assert post(process, "/internal/replicas", report).status_code == 204
    with acting_as(PLATFORM):
        assert ReplicaRow.objects.get().state == "warm_idle"


@pytest.mark.parametrize("path", ["/internal/usage", "/internal/replicas"])
@pytest.mark.parametrize("body", [b"", b"\xc1", b"{}", b"\x91" * 5000, msgspec.msgpack.encode({"records": 1})])
def test_a_body_that_is_no_message_is_refused(process, db, path, body):
    assert process.post(path, body, content_type="application/msgpack").status_code == 400


def test_a_body_of_too_many_bytes_is_refused(process, db):
    body = b"x" * (internal.MAX_BODY_BYTES + 1)
    assert process.post("/internal/usage", body, content_type="application/msgpack").status_code == 413


@pytest.mark.parametrize("path", ["/internal/catalog", "/internal/usage", "/internal/replicas"])
@pytest.mark.parametrize("shown", [None, "", "Bearer ", "Bearer wrong", "Basic x", "bearer é"])
def test_who_does_not_know_the_secret_learns_nothing(client, path, shown):
    headers = {} if shown is None else {"HTTP_AUTHORIZATION": shown}
    for answer in (client.get(path, **headers), client.post(path, b"", content_type="x/y", **headers)):
        assert answer.status_code == 401
