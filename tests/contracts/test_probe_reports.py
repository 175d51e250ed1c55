import msgspec

from dataplane.contracts import ids, probes
from dataplane.contracts.auc import binned
from dataplane.contracts.probes import ProbeKind, ProbeReport


def report(slow_s: list[float], fast_s: list[float]) -> ProbeReport:
    return ProbeReport("rep_1", "dep_1", "ver_1", ProbeKind.WITHIN, at_ms=1, slow=binned(slow_s), fast=binned(fast_s))


def test_no_tenant_can_have_the_id_of_a_made_up_one() -> None:
    assert not any(ids.is_id(tenant_id, ids.Kind.TENANT) for tenant_id in probes.TENANTS)


def test_reports_of_several_replicas_are_one_verdict() -> None:
    found = probes.verdict([report([0.2, 0.4], [0.1]), report([0.3], [0.1, 0.25])])
    assert found is not None
    assert (found.num_slow, found.num_fast) == (3, 3)
    assert found.auc == 8 / 9
    assert probes.verdict([]) is None


def test_a_report_comes_through_as_it_was() -> None:
    sent = report([0.01, 0.02], [0.01])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ProbeReport) == sent


def test_a_made_up_tenant_is_promised_nothing_and_can_take_little() -> None:
    for share in probes.TENANTS.values():
        assert (share.guarantee_tokens, share.weight) == (0, 1)
        assert share.cap_tokens is not None
