"""A version's way from its parts to READY or REJECTED, with a fleet by script."""

import json
import shutil
import struct
from pathlib import Path

import pytest
from validation_world import (
    blobs_in,
    bring,
    collect,
    digests,
    grow_old,
    job_of,
    let_time_pass,
    line,
    lines,
    stored,
    validate,
    verbs,
)

from controlplane.jobs.lease import JobState
from controlplane.registry import lifecycle
from controlplane.registry.inspection import InspectionFailed
from controlplane.registry.validation import steps, workspace
from controlplane.registry.validation.checklist import LINES
from dataplane.contracts.replica import Device, TrialReport, TrialState
from dataplane.contracts.verdict import Progress, version_digest
from tenants.actor import member_actor

ALL_PASSED = dict.fromkeys((line.name for line in LINES), "passed")


@pytest.fixture
def quick(monkeypatch, good_verdict):
    """The inspector's word on the good model, without asking it again; the calls are counted."""
    calls = []

    def say(folder: Path, **_: object):
        calls.append(sorted(path.name for path in folder.iterdir()))
        return good_verdict

    monkeypatch.setattr(steps, "inspect", say)
    return calls


def test_a_good_upload_becomes_ready_with_every_line_passed(personas, carded, home_store, fleet):
    version = bring(personas.acme, carded, home_store)
    assert validate(version) is JobState.DONE
    ready = stored(version)
    assert (ready.state, lines(version)) == ("ready", ALL_PASSED)
    assert all(check.started_at <= check.ended_at for check in ready.checks.all())
    assert ready.checked_config.num_kv_heads == 2
    assert (ready.context_tokens, ready.has_chat_template, ready.licence) == (512, True, "apache-2.0")
    assert ready.card.strip() == "<h1>Tiny</h1>\n<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"
    assert ready.digest == version_digest(fleet.asked[0].version.files)
    assert blobs_in(home_store) == digests(carded)
    assert list(home_store.uploads()) == []
    assert list(workspace.root().iterdir()) == []
    assert verbs(version) == ["version.ready"]
    assert "leaves room for" in line(version, "memory")[0]
    assert line(version, "smoke")[0] == "First token after 12 ms."


def test_the_fleet_is_asked_to_try_the_smallest_replica_that_says_something(personas, carded, home_store, fleet, quick):
    version = bring(personas.acme, carded, home_store)
    validate(version)
    (request,) = fleet.asked
    assert (request.version.id, request.version.tenant_id) == (version.id, personas.acme.id)
    assert (request.engine.max_num_seqs, request.engine.max_model_len, request.engine.dtype) == (1, 512, "fp32")


def test_what_is_deleted_on_its_way_leaves_no_parts(personas, carded, home_store, fleet):
    """Its room is its tenant's again at once; bytes that stayed until the sweep would let the disk be filled."""
    version = bring(personas.acme, carded, home_store)
    lifecycle.delete_version(actor=member_actor(personas.alice, "acme"), version_id=version.id)
    assert list(home_store.uploads()) != []
    assert validate(version) is JobState.DONE
    assert list(home_store.uploads()) == []


def test_what_lacks_a_part_is_rejected_and_leaves_none_of_the_others(personas, carded, home_store, fleet):
    version = bring(personas.acme, carded, home_store)
    (home_store.root / "uploads" / version.id / "config.json" / "parts").rename(home_store.root / "away")
    assert validate(version) is JobState.DONE
    why, _ = line(version, "files")
    assert (stored(version).state, "a part is missing" in why, str(home_store.root) in why) == ("rejected", True, False)
    assert list(home_store.uploads()) == []


def spoil_names(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def spoil_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.Model"}}))


def spoil_finite(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + struct.pack("<f", float("nan")))


@pytest.mark.parametrize(
    ("spoil", "at_fault", "reason"),
    [
        (spoil_names, "names", "pytorch_model.bin"),
        (spoil_config, "config", "auto_map"),
        (spoil_finite, "finite", "NaN"),
    ],
)
def test_a_bad_upload_is_rejected_with_the_line_the_reason_and_the_mend(
    personas, carded, home_store, fleet, tmp_path, spoil, at_fault, reason
):
    folder = shutil.copytree(carded, tmp_path / "bad")
    spoil(folder)
    version = bring(personas.acme, folder, home_store)
    assert validate(version) is JobState.DONE
    states = lines(version)
    assert stored(version).state == "rejected"
    assert [name for name, state in states.items() if state == "failed"] == [at_fault]
    assert states["files"] == "passed"
    assert {states[name] for name in ("memory", "smoke", "publish")} == {"not_run"}
    why, mend = line(version, at_fault)
    assert reason in why
    assert mend
    assert fleet.asked == []
    assert verbs(version) == ["version.reject"]


def test_a_part_that_changed_on_disk_rejects_the_upload(personas, carded, home_store, fleet):
    version = bring(personas.acme, carded, home_store)
    part = next((home_store.root / "uploads" / version.id / "config.json" / "parts").iterdir())
    part.write_bytes(b"x" * part.stat().st_size)
    validate(version)
    assert stored(version).state == "rejected"
    assert "config.json" in line(version, "files")[0]


def test_a_version_that_does_not_generate_is_rejected_with_the_fleets_cause(personas, carded, home_store, fleet, quick):
    fleet.script = [TrialReport(version_id="", state=TrialState.FAILED, cause="the engine met NaN logits")]
    version = bring(personas.acme, carded, home_store)
    validate(version)
    assert stored(version).state == "rejected"
    assert "NaN logits" in line(version, "smoke")[0]
    assert lines(version)["memory"] == "passed"


def test_a_model_that_fits_no_device_is_rejected_with_the_numbers(
    personas, carded, home_store, fleet, quick, monkeypatch
):
    small = Device(kind="cpu", name="toaster", memory_bytes=64 * 1024**2)
    monkeypatch.setattr(steps, "devices", lambda: [small])
    version = bring(personas.acme, carded, home_store)
    validate(version)
    assert stored(version).state == "rejected"
    assert "toaster (cpu, 0.1 GiB)" in line(version, "memory")[0]
    assert fleet.asked == []


def test_without_a_fleet_a_version_waits_and_nothing_is_done_twice(personas, carded, home_store, fleet, quick):
    fleet.script = [503]
    version = bring(personas.acme, carded, home_store)
    assert validate(version) is JobState.QUEUED
    assert stored(version).state == "validating"
    assert lines(version)["smoke"] == "running"
    assert "tried again" in line(version, "smoke")[0]
    fleet.script = [TrialReport(version_id="", state=TrialState.PASSED)]
    fleet.restart()
    let_time_pass(version)
    assert validate(version) is JobState.DONE
    assert lines(version) == ALL_PASSED
    assert len(quick) == 1, "the files were read again"


def test_a_reader_that_breaks_down_is_our_fault_and_tried_again(personas, carded, home_store, fleet, monkeypatch):
    def break_down(*_: object, **__: object):
        raise InspectionFailed("the inspector was ended by SIGSEGV")

    monkeypatch.setattr(steps, "inspect", break_down)
    version = bring(personas.acme, carded, home_store)
    assert validate(version) is JobState.QUEUED
    assert stored(version).state == "validating"
    assert "SIGSEGV" in job_of(version).error
    assert "SIGSEGV" not in line(version, "names")[0]


def test_each_line_is_shown_as_running_and_then_as_over_while_the_reader_is_at_it(
    personas, carded, home_store, fleet, monkeypatch, good_verdict
):
    seen = []

    def in_steps(folder: Path, *, tell):
        for check in good_verdict.checks:
            tell(Progress(check.name))
            tell(None)
            seen.append(dict(lines(version)))
            tell(Progress(check.name, ended=check))
        seen.append(dict(lines(version)))
        return good_verdict

    monkeypatch.setattr(steps, "inspect", in_steps)
    version = bring(personas.acme, carded, home_store)
    validate(version)
    shown = [[states[name] for name in ("names", "weights", "tokenizer")] for states in seen]
    names = [check.name for check in good_verdict.checks]
    assert shown[names.index("files")] == ["running", "pending", "pending"]
    assert shown[names.index("weights")] == ["passed", "running", "pending"]
    assert shown[names.index("finite")] == ["passed", "passed", "running"], "the tokenizer is not tried yet"
    assert shown[-1] == ["passed", "passed", "passed"]
    assert seen[-1]["memory"] == "pending"


def test_files_that_are_not_those_that_arrived_are_refused(
    personas, carded, home_store, fleet, monkeypatch, good_verdict
):
    from msgspec.structs import replace

    monkeypatch.setattr(steps, "inspect", lambda *_, **__: replace(good_verdict, files=good_verdict.files[1:]))
    version = bring(personas.acme, carded, home_store)
    validate(version)
    assert (stored(version).state, lines(version)["digests"]) == ("rejected", "failed")


def test_the_same_content_again_is_rejected_and_names_the_version_there_is(personas, carded, home_store, fleet, quick):
    first, again = bring(personas.acme, carded, home_store), bring(personas.acme, carded, home_store)
    validate(first)
    validate(again)
    assert (stored(first).state, stored(again).state) == ("ready", "rejected")
    assert line(again, "publish") == ("Version 1 has exactly this content.", "Use version 1.")
    assert len(quick) == 1, "what is known already was read again"
    assert validate_as_another_model(personas, carded, home_store) == "ready"


def validate_as_another_model(personas, folder, store) -> str:
    other = bring(personas.acme, folder, store, name="other")
    validate(other)
    return stored(other).state


def test_a_version_deleted_while_it_is_validated_leaves_nothing(
    personas, carded, home_store, fleet, monkeypatch, good_verdict
):
    alice = member_actor(personas.alice, "acme")
    version = bring(personas.acme, carded, home_store)

    def meanwhile(*_: object, **__: object):
        lifecycle.delete_version(actor=alice, version_id=version.id)
        return good_verdict

    monkeypatch.setattr(steps, "inspect", meanwhile)
    assert validate(version) is JobState.DONE
    assert (stored(version).state, stored(version).deleted_at is not None) == ("rejected", True)
    assert fleet.asked == []
    assert verbs(version) == ["version.delete"]
    grow_old()
    collect()
    assert blobs_in(home_store) == set()
