import pytest

from dataplane.contracts import headers, ids, probes
from dataplane.contracts.errors import ApiError, Code
from dataplane.worker import doors

TCP = ("127.0.0.1", 8000)
UNIX = ("/run/http.sock", None)
REQUEST_ID = ids.new_id(ids.Kind.REQUEST)


def scope(server: tuple | None, **fields: str) -> dict:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]
    return {"server": server, "headers": pairs}


FROM_GATEWAY = {
    headers.TENANT: "ten_a",
    headers.REQUEST_ID: REQUEST_ID,
    headers.ATTEMPT: "2",
    headers.KEY: "key_a",
    headers.DEPLOYMENT: "dep_a",
    headers.VERSION: "ver_a",
    headers.ARM: "candidate",
    headers.FORCED: "1",
    headers.METER: "1",
    headers.QUEUE_WAIT_S: "2.500",
    headers.PACE_MS: "40",
}
OF_A_PROBE = {headers.TENANT: probes.STRANGER, headers.REQUEST_ID: REQUEST_ID, headers.PROBE: "1"}


def test_on_the_unix_socket_the_internal_headers_count() -> None:
    caller = doors.read_caller(scope(UNIX, **FROM_GATEWAY), trust_header=False)
    assert caller == doors.Caller(
        request_id=REQUEST_ID, trusted=True, attempt=2, tenant_id="ten_a", key_id="key_a", deployment_id="dep_a",
        version_id="ver_a", arm="candidate", forced=True, billed=True, metered=True, queue_wait_s=2.5,
        pace_s=0.04,
    )  # fmt: skip


@pytest.mark.parametrize("server", [TCP, None])
def test_anywhere_else_they_are_ignored_and_the_tenant_is_the_default(server: tuple | None) -> None:
    caller = doors.read_caller(scope(server, **FROM_GATEWAY), trust_header=False)
    assert caller.request_id != REQUEST_ID
    assert caller == doors.Caller(request_id=caller.request_id)


def test_an_operator_may_trust_a_loopback_port() -> None:
    assert doors.read_caller(scope(TCP, **FROM_GATEWAY), trust_header=True).tenant_id == "ten_a"


@pytest.mark.parametrize("missing", [headers.TENANT, headers.REQUEST_ID])
def test_nobody_is_billed_without_tenant_and_request_id(missing: str) -> None:
    fields = {name: value for name, value in FROM_GATEWAY.items() if name != missing}
    assert not doors.read_caller(scope(UNIX, **fields), trust_header=False).billed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (headers.TENANT, ""),
        (headers.TENANT, "a b"),
        (headers.TENANT, "ä"),
        (headers.TENANT, "x" * 129),
        (headers.REQUEST_ID, "req_1"),
        (headers.REQUEST_ID, ids.new_id(ids.Kind.KEY)),
        (headers.ATTEMPT, "-1"),
        (headers.ATTEMPT, "1.5"),
        (headers.ATTEMPT, "99999"),
        (headers.ARM, "a\tb"),
        (headers.QUEUE_WAIT_S, "soon"),
        (headers.QUEUE_WAIT_S, "-1"),
        (headers.PACE_MS, "1.5"),
        (headers.PACE_MS, "10000"),
        (headers.PROBE, "1"),  # a tenant's own request is no probe
    ],
)
def test_a_malformed_internal_header_is_refused_at_the_trusted_door(name: str, value: str) -> None:
    with pytest.raises(ApiError) as caught:
        doors.read_caller(scope(UNIX, **(FROM_GATEWAY | {name: value})), trust_header=False)
    assert caught.value.code is Code.INVALID_REQUEST
    assert name in caught.value.message


def test_a_probe_is_never_billed_and_one_of_the_made_up_tenants() -> None:
    caller = doors.read_caller(scope(UNIX, **OF_A_PROBE), trust_header=False)
    assert (caller.probe, caller.billed, caller.tenant_id) == (True, False, probes.STRANGER)


def test_a_made_up_tenant_does_nothing_but_probe() -> None:
    with pytest.raises(ApiError):
        doors.read_caller(scope(UNIX, **(OF_A_PROBE | {headers.PROBE: "0"})), trust_header=False)


def test_nobody_probes_through_another_door() -> None:
    assert not doors.read_caller(scope(TCP, **OF_A_PROBE), trust_header=False).probe


def test_an_internal_header_given_twice_is_refused() -> None:
    twice = scope(UNIX, **FROM_GATEWAY)
    twice["headers"].append((b"X-Pagoda-Tenant", b"ten_b"))
    with pytest.raises(ApiError):
        doors.read_caller(twice, trust_header=False)
