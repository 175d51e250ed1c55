import pytest

from dataplane.contracts.catalog import IdlePolicy
from dataplane.contracts.errors import ApiError
from dataplane.gateway import patience
from dataplane.gateway.door import Headers
from dataplane.gateway.patience import Patience

WAIT, BEAT, QUEUE = b"x-pagoda-cold-wait-s", b"x-pagoda-cold-heartbeat", b"x-pagoda-queue-wait-s"


def asked(*headers: tuple[bytes, bytes], stream: bool = True, policy: IdlePolicy | None = None) -> Patience:
    found, policy = Headers({"headers": list(headers)}), policy or IdlePolicy()
    return patience.of(found, policy, stream=stream, max_wait_s=300.0, max_queue_wait_s=240.0)


def test_who_asks_for_nothing_waits_as_the_deployment_says() -> None:
    assert asked() == Patience(30.0)
    assert asked(policy=IdlePolicy(cold_wait_s=0)) == Patience(0.0)
    assert asked(policy=IdlePolicy(cold_wait_s=10_000)) == Patience(300.0)


def test_a_caller_may_ask_for_another_wait_and_for_signs_of_life() -> None:
    assert asked((WAIT, b"120"), (BEAT, b"1")) == Patience(120.0, heartbeats=True)
    assert asked((WAIT, b"0"), (BEAT, b"0"), stream=False) == Patience(0.0, shortened=True)
    assert asked((WAIT, b"2.5")) == Patience(2.5, shortened=True)
    assert asked((WAIT, b"2.5"), policy=IdlePolicy(cold_wait_s=2)) == Patience(2.5)
    assert asked((QUEUE, b"0.5")) == Patience(30.0, queue_wait_s=0.5)


@pytest.mark.parametrize(
    "headers",
    [
        [(WAIT, b"301")], [(WAIT, b"-1")], [(WAIT, b"inf")], [(WAIT, b"1e2")], [(WAIT, b"")], [(WAIT, "٣".encode())],
        [(WAIT, b"1"), (WAIT, b"2")], [(QUEUE, b"241")], [(QUEUE, b"soon")], [(BEAT, b"yes")],
        [(BEAT, b"1"), (BEAT, b"0")],
    ],
)  # fmt: skip
def test_what_cannot_be_granted_is_refused_by_name(headers: list) -> None:
    with pytest.raises(ApiError) as refused:
        asked(*headers)
    assert refused.value.param == headers[0][0].decode()
    assert refused.value.code.status == 400


def test_a_whole_answer_has_no_signs_of_life() -> None:
    with pytest.raises(ApiError, match="needs a stream"):
        asked((BEAT, b"1"), stream=False)
