from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane import atomic_file
from dataplane.contracts.replica import ReplicaEvent, ReplicaState
from dataplane.fleet import journal as journal_module
from dataplane.fleet.journal import Journal

S = ReplicaState


def event(replica_id: str = "rep-1", old: S = S.COLD, new: S = S.STARTING) -> ReplicaEvent:
    return ReplicaEvent(sequence=0, replica_id=replica_id, at_ms=1, old=old, new=new, cause="because")


def save(journal: Journal) -> bool:
    snapshot = journal.snapshot()
    return snapshot is None or journal.write(snapshot)


def numbers(journal: Journal) -> list[int]:
    return [event.sequence for event in journal.sendable(1000)]


def test_an_event_is_sent_only_once_it_is_durable(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "events.json", "host")
    journal.record(event())
    assert numbers(journal) == []
    assert save(journal)
    assert numbers(journal) == [1]


@given(st.lists(st.sampled_from(["record", "save", "send", "crash"]), max_size=30))
def test_whatever_the_crashes_a_number_never_names_two_events_and_none_sent_is_lost_before_its_receipt(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "events.json"
    journal = Journal(path, "host")
    received: dict[int, ReplicaEvent] = {}
    durable = 0
    for count, step in enumerate(steps):
        match step:
            case "record":
                journal.record(event(f"rep-{count}"))
            case "save":
                save(journal)
                durable = max([durable, *numbers(journal)])
            case "send":
                sent = journal.sendable(3)
                assert all(received.setdefault(each.sequence, each) == each for each in sent)
                journal.acknowledge(sent)
            case "crash":
                journal = Journal(path, "host")
    save(journal)
    while sent := journal.sendable(3):
        received.update({each.sequence: each for each in sent})
        journal.acknowledge(sent)
    assert set(range(1, durable + 1)) <= received.keys()


def test_a_restart_keeps_the_node_its_numbers_and_tells_the_end_of_those_that_were_alive(tmp_path: Path) -> None:
    first = Journal(tmp_path / "events.json", "host")
    for each in (
        event("rep-1"),
        event("rep-2"),
        event("rep-1", S.STARTING, S.READY),
        event("rep-2", S.STARTING, S.STOPPED),
    ):
        first.record(each)
    save(first)
    second = Journal(tmp_path / "events.json", "host")
    assert second.node == first.node
    second.end_of_former_life(at_ms=9, cause="the fleet was started anew")
    save(second)
    last = second.sendable(100)[-1]
    assert (last.sequence, last.replica_id, last.old, last.new) == (5, "rep-1", S.READY, S.STOPPED)
    second.end_of_former_life(at_ms=10, cause="again")
    assert len(second.sendable(100)) == 5


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_without_its_file_it_is_another_node_whose_numbers_begin_again(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "events.json"
    first = Journal(path, "host")
    save(first)
    path.unlink() if content is None else path.write_bytes(content)
    second = Journal(path, "host")
    assert first.node != second.node
    assert second.node.startswith("host-")


def test_a_full_disk_delays_events_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "events.json", "host")
    journal.record(event())

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic_file, "write", refuse)
        assert not save(journal)
    assert numbers(journal) == []
    assert save(journal)
    assert numbers(journal) == [1]


def test_a_control_plane_away_for_ever_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_MAX_PENDING", 3)
    journal = Journal(tmp_path / "events.json", "host")
    for number in range(5):
        journal.record(event(f"rep-{number}"))
    save(journal)
    assert numbers(journal) == [3, 4, 5]
