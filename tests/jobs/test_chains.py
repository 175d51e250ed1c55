"""Audit chains are walked from the first row, part by part, and their heads keep how far they hold."""

import pytest
from audit_world import some_changes, tamper

from controlplane.jobs.run import run_job
from controlplane.jobs.services import verify_audit_soon
from tenants import audit
from tenants.actor import acting_as, member_actor, platform_actor, system_actor
from tenants.errors import Forbidden
from tenants.models import AuditEvent, AuditHead

TESTS = system_actor("tests")


def walked(rows: int) -> AuditHead:
    """Walk every chain ``rows`` at a time, and return acme's head."""
    with acting_as(TESTS):
        for walk in audit.walks():
            while not walk.is_over:
                audit.walk_on(walk, rows=rows)
        return AuditHead.objects.get(tenant__slug="acme")


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_a_chain_holds_however_many_rows_are_walked_at_a_time(rows, personas):
    some_changes(personas)
    head = walked(rows)
    assert (head.verified_sequence, head.fault) == (3, "")
    assert head.verified_at is not None


@pytest.mark.parametrize("rows", [1, 100])
@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE tenants_auditevent SET actor_label = 'bob' WHERE sequence = 2", "row 2: its content"),
        ("DELETE FROM tenants_auditevent WHERE sequence = 2", "row 3: rows 2 to 2 are missing"),
        ("DELETE FROM tenants_auditevent WHERE sequence = 3", "row 3: the chain ends at row 2"),
        ("UPDATE tenants_audithead SET sequence = 2", "row 2: the chain ends at row 2, its head names row 2"),
    ],
)
def test_the_first_fault_is_kept_at_the_head(rows, statement, fault, committed, personas, postgres):
    some_changes(personas)
    tamper(postgres, statement)
    assert walked(rows).fault.startswith(fault)


def test_rows_behind_the_end_are_a_fault(committed, personas, postgres):
    some_changes(personas)
    with acting_as(TESTS):
        second = AuditEvent.objects.get(tenant=personas.acme, sequence=2).hash
    tamper(postgres, f"UPDATE tenants_audithead SET sequence = 2, hash = '{second}'")
    assert walked(100).fault == "row 3: it stands behind the end that its head names"


def test_a_chain_that_is_mended_is_told_as_whole_again(personas):
    some_changes(personas)
    with acting_as(TESTS):
        AuditHead.objects.update(fault="row 1: its content is not what was written")
    assert walked(100).fault == ""


def test_a_chain_without_a_head_fails_the_job_after_the_others_were_walked(committed, personas, postgres):
    some_changes(personas)
    tamper(postgres, "DELETE FROM tenants_audithead")
    root = platform_actor(personas.root)
    job = verify_audit_soon(actor=root)
    run_job(job.id)
    with acting_as(TESTS):
        job.refresh_from_db()
        assert AuditHead.objects.get(tenant=None).verified_sequence == 1
    assert "have lost their heads: ten_" in job.error


def test_who_does_not_read_the_platforms_audit_has_nothing_verified(personas):
    with pytest.raises(Forbidden):
        verify_audit_soon(actor=member_actor(personas.alice, "acme"))
