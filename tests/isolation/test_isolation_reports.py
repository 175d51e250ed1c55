"""What a fleet reports becomes each tenant's own figures, whatever is told twice, late, or counted anew."""

from datetime import timedelta

import msgspec
import pytest
from domain import PLATFORM, deploy
from isolation_world import BEGIN, BLOCK_SIZE, ENOUGH, Node, apart, load, probe, replica, sound

from controlplane.deployments.services import remove_grant, set_grant
from controlplane.isolation import jobs, selectors, services
from controlplane.isolation.models import CacheBucket, ProbeRow, ReplicaWord, TenantBucket
from controlplane.isolation.series import Span
from controlplane.isolation.standing import Standing
from controlplane.jobs.services import Lease
from dataplane.contracts.catalog import Share
from dataplane.contracts.generation import TenantLoad
from dataplane.contracts.probes import PRIMER, ProbeKind
from tenants.actor import acting_as, member_actor, platform_actor
from tenants.errors import Forbidden, NotFound


@pytest.fixture
def node(monkeypatch) -> Node:
    return Node().install(monkeypatch)


@pytest.fixture
def chat(personas):
    """Acme's deployment, on which evil has a share."""
    deployment = deploy(personas.acme)
    set_grant(actor=PLATFORM, deployment_id=deployment.id, grantee_slug="evil", share=Share(64, 1024))
    return deployment


@pytest.fixture
def acme(personas):
    return member_actor(personas.carol, "acme")


@pytest.fixture
def evil(personas):
    return member_actor(personas.mallory, "evil")


def figures(actor, deployment):
    return selectors.get_isolation(actor=actor, deployment_id=deployment.id, span=Span.HOUR)


def test_a_tenant_reads_memory_preemptions_turns_and_cache_of_all_replicas_together(node, chat, personas, acme):
    counted = {"preemptions": {"reclaim": 2}, "served_units": 50.0, "peak_owned_blocks": 20}
    gap = {"service_gap_units": 90.0, "service_bound_units": 100.0}
    node.tell(
        replica("rep_1", chat, load(personas.acme, 10, prefix_queries_tokens=64, prefix_hits_tokens=48, **counted)),
        replica("rep_2", chat, load(personas.acme, 5, num_waiting=2, **gap)),
    )
    found = figures(acme, chat)
    assert found.now is not None
    assert found.now.used_tokens == 15 * BLOCK_SIZE
    assert (found.whole.guarantee_tokens, found.whole.cap_tokens) == (8 * BLOCK_SIZE, 256 * BLOCK_SIZE)
    assert (found.whole.borrowed_tokens, found.whole.peak_tokens) == (7 * BLOCK_SIZE, 25 * BLOCK_SIZE)
    assert (found.whole.preemptions, found.whole.service_units, found.whole.waiting) == ({"reclaim": 2}, 50.0, 2)
    assert (found.whole.gap_units, found.whole.bound_units) == (90.0, 100.0)
    assert (found.whole.queries_tokens, found.whole.hits_tokens) == (64, 48)
    assert (found.judgement.memory, found.judgement.turns) == (Standing.KEPT, Standing.KEPT)
    assert (found.tenant, found.seen_at) == ("acme", node.now)


def test_counts_are_read_as_differences_over_restarts_of_engine_and_replica(node, chat, personas, acme):
    def served(name: str, units: float, step: int, **fields) -> None:
        node.tell(replica(name, chat, load(personas.acme, 1, served_units=units, **fields), step=step))

    served("rep_1", 100.0, 10, preemptions={"growth": 4})
    served("rep_1", 130.0, 20, preemptions={"growth": 5})
    served("rep_1", 7.0, 30)  # the engine was made again, and has done more steps than before
    served("rep_1", 400.0, 5)  # once more: it has counted more than before, in fewer steps
    served("rep_2", 20.0, 40)
    whole = figures(acme, chat).whole
    assert (whole.service_units, whole.preemptions) == (130 + 7 + 400 + 20, {"growth": 5})


def test_a_report_that_was_overtaken_or_is_told_again_counts_nothing(node, chat, personas, acme):
    first = node.tell(replica("rep_1", chat, load(personas.acme, served_units=100.0)))
    second = node.tell(replica("rep_1", chat, load(personas.acme, served_units=150.0)))
    node.now += timedelta(minutes=1)
    for late in (first, second, first):
        services.ingest(actor=PLATFORM, report=late)
    assert figures(acme, chat).whole.service_units == 150.0


def test_reports_that_follow_at_once_are_read_later_and_nothing_is_lost(node, chat, personas, acme):
    node.tell(replica("rep_1", chat, load(personas.acme, served_units=1.0)))
    for units in (2.0, 3.0, 4.0):
        node.tell(replica("rep_1", chat, load(personas.acme, served_units=units)), after_s=1)
    assert figures(acme, chat).whole.service_units == 1.0
    node.tell(replica("rep_1", chat, load(personas.acme, served_units=5.0)), after_s=5)
    assert figures(acme, chat).whole.service_units == 5.0


def test_figures_go_into_the_minutes_in_which_they_were_told(node, chat, personas, acme):
    node.tell(replica("rep_1", chat, load(personas.acme, 30, peak_owned_blocks=30)))
    node.tell(replica("rep_1", chat, load(personas.acme, 2, peak_owned_blocks=30)), after_s=600)
    peaks = [slot.reading.peak_tokens for slot in figures(acme, chat).slots if slot.reading.cap_tokens]
    assert peaks == [30 * BLOCK_SIZE, 2 * BLOCK_SIZE]
    assert figures(acme, chat).whole.peak_tokens == 30 * BLOCK_SIZE


def test_a_quiet_tenant_is_heard_of_without_a_row_for_every_report(node, chat, personas, acme):
    for _ in range(4):
        node.tell(replica("rep_1", chat, load(personas.acme)), after_s=10)
    assert figures(acme, chat).seen_at == BEGIN + timedelta(seconds=10)
    node.tell(replica("rep_1", chat, load(personas.acme)), after_s=30)
    assert figures(acme, chat).seen_at == node.now


def test_who_has_no_grant_and_who_is_made_up_has_no_figures(node, chat, personas, evil):
    strangers = [load(personas.evil, 3), TenantLoad(PRIMER, 0, 64, 1, 9, 0, 0, 0, 0.0)]
    remove_grant(actor=PLATFORM, deployment_id=chat.id, grantee_slug="evil")
    node.tell(replica("rep_1", chat, load(personas.acme), *strangers))
    with acting_as(PLATFORM):
        assert set(TenantBucket.objects.values_list("tenant_id", flat=True)) == {personas.acme.id}
    with pytest.raises(NotFound):
        figures(evil, chat)


def test_a_guest_reads_its_own_figures_and_the_probes_and_nothing_of_the_owner(node, chat, personas, acme, evil):
    node.tell(
        replica("rep_1", chat, load(personas.acme, 40), load(personas.evil, 3, preemptions={"reclaim": 1})),
        probes=sound(chat),
    )
    found = figures(evil, chat)
    assert (found.tenant, found.whole.used_tokens, found.whole.preempted) == ("evil", 3 * BLOCK_SIZE, 1)
    assert found.share == Share(64, 1024)
    assert not found.is_alone
    assert found.judgement.cache is Standing.KEPT
    with acting_as(evil):
        assert set(TenantBucket.objects.values_list("tenant_id", flat=True)) == {personas.evil.id}
        assert not ReplicaWord.objects.exists()


def test_a_stranger_reads_nothing(node, personas, evil):
    alone = deploy(personas.acme)
    node.tell(replica("rep_1", alone, load(personas.acme, 4)), probes=sound(alone))
    with pytest.raises(NotFound):
        figures(evil, alone)
    with acting_as(evil):
        for model in (TenantBucket, CacheBucket, ProbeRow, ReplicaWord):
            assert not model.objects.exists()
    assert figures(member_actor(personas.alice, "acme"), alone).is_alone


def test_probes_of_all_replicas_are_one_finding_and_the_newest_word_of_each_counts(node, chat, acme):
    across, within = sound(chat, at=BEGIN + timedelta(minutes=9), trials=1_500)
    old = probe(chat, ProbeKind.ACROSS, *apart(50), at=BEGIN)
    other = [probe(chat, each.kind, each.slow, each.fast, replica_id="rep_2", at=BEGIN) for each in (across, within)]
    node.tell(probes=(across, within))
    node.tell(probes=(old, *other))
    findings = figures(acme, chat).findings
    assert findings[ProbeKind.ACROSS].trials == 3_000
    told = findings[ProbeKind.ACROSS].separation
    assert told is not None
    assert (told.auc, told.high <= 0.55) == (0.5, True)
    assert findings[ProbeKind.WITHIN].cached_tokens == 56 * 1_500
    assert figures(acme, chat).judgement.cache is Standing.KEPT


def test_a_tenant_is_told_of_probes_in_round_figures_and_the_platform_exactly(node, chat, acme, personas):
    report = probe(chat, ProbeKind.BATCH, *apart(2_345), at=BEGIN + timedelta(minutes=22), given_up=7)
    node.tell(probes=(report,))
    told = figures(acme, chat).findings[ProbeKind.BATCH]
    assert (told.trials, told.at, told.given_up) == (2_300, BEGIN + timedelta(minutes=15), 0)
    everybody = selectors.list_isolation(actor=platform_actor(personas.root), deployment_id=chat.id)
    exact = everybody.findings[ProbeKind.BATCH]
    assert (exact.trials, exact.at, exact.given_up) == (2_345, BEGIN + timedelta(minutes=22), 7)
    assert [each.tenant for each in everybody.tenants] == ["acme", "evil"]


def test_one_trial_more_of_few_changes_nothing_that_a_tenant_is_told(node, chat, acme):
    def told(trials: int) -> object:
        slow, fast = apart(trials)
        node.tell(probes=(probe(chat, ProbeKind.BATCH, slow, fast, at=BEGIN + timedelta(seconds=trials)),))
        return figures(acme, chat).findings[ProbeKind.BATCH]

    assert told(43) == told(44)


def test_a_few_tokens_from_another_tenants_cache_are_never_rounded_away(node, chat, acme):
    across, within = sound(chat)
    leaking = probe(chat, ProbeKind.ACROSS, across.slow, across.fast, cached_tokens=1)
    node.tell(probes=(leaking, within))
    found = figures(acme, chat)
    assert (found.findings[ProbeKind.ACROSS].cached_tokens, found.judgement.cache) == (1, Standing.BROKEN)


def test_old_figures_end_and_so_do_findings_of_versions_that_serve_no_more(node, chat, personas, acme):
    with acting_as(PLATFORM):
        version_id = chat.arms.get().version_id
    kept = [probe(chat, ProbeKind.ACROSS, *apart(9), version_id=version_id)]
    node.tell(replica("rep_1", chat, load(personas.acme, 2)), probes=(*kept, *sound(chat)[1:]))
    prune()
    with acting_as(PLATFORM):
        assert (TenantBucket.objects.count(), ReplicaWord.objects.count()) == (1, 1)
        assert ProbeRow.objects.get().version_id == version_id
    node.now += timedelta(days=9)
    prune()
    with acting_as(PLATFORM):
        assert (TenantBucket.objects.count(), ReplicaWord.objects.count(), ProbeRow.objects.count()) == (0, 0, 1)


def prune() -> None:
    jobs.prune(Lease(job_id="job_of_a_test", kind="isolation.prune", key="now", payload={}, fence=1))


def test_only_the_platform_reports_prunes_and_reads_everybody(node, chat, personas, acme):
    report = node.tell(replica("rep_1", chat, load(personas.acme)))
    with pytest.raises(Forbidden):
        services.ingest(actor=acme, report=report)
    with pytest.raises(Forbidden):
        services.prune(actor=acme)
    with pytest.raises(Forbidden):
        selectors.list_isolation(actor=acme, deployment_id=chat.id)
    with pytest.raises(NotFound):
        selectors.list_isolation(actor=platform_actor(personas.root), deployment_id="dep_of_nobody")


def test_a_report_costs_the_same_for_many_tenants_and_little_when_it_comes_at_once(
    node, chat, personas, django_assert_max_num_queries
):
    tenants = [load(personas.acme, 3), load(personas.evil, 3)]
    node.tell(replica("rep_1", chat, *tenants), replica("rep_2", chat, *tenants))
    report = node.tell(replica("rep_1", chat, *tenants), replica("rep_2", chat, *tenants), after_s=1)
    with django_assert_max_num_queries(6):  # savepoint, set, node, words, unset, release
        services.ingest(actor=PLATFORM, report=report)
    node.now += timedelta(minutes=1)
    with django_assert_max_num_queries(10):  # grants, buckets, both written
        services.ingest(actor=PLATFORM, report=report)


def test_probes_of_a_deployment_that_does_not_exist_are_left_out(node, chat):
    report = probe(chat, ProbeKind.ACROSS, *apart(ENOUGH), deployment_id="dep_of_nobody")
    node.tell(probes=(report,))
    with acting_as(PLATFORM):
        assert not ProbeRow.objects.exists()


def test_lost_hits_are_counted_over_all_tenants_and_told_to_the_platform_alone(node, chat, personas, evil):
    def looked_up(queries: int, hits: int, lost: int, **fields) -> None:
        told = replica("rep_1", chat, load(personas.evil), **fields)
        counted = {"prefix_cache_queries_tokens": queries, "prefix_cache_hits_tokens": hits, "lost_hits_tokens": lost}
        node.tell(msgspec.structs.replace(told, load=msgspec.structs.replace(told.load, **counted)))

    looked_up(100, 40, 8)
    looked_up(160, 40, 32)
    looked_up(50, 0, 16)  # the engine was made again
    everybody = selectors.list_isolation(actor=platform_actor(personas.root), deployment_id=chat.id)
    assert (everybody.queries_tokens, everybody.hits_tokens, everybody.lost_tokens) == (210, 40, 48)
    with acting_as(evil):
        assert not CacheBucket.objects.exists()
