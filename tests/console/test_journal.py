"""What audit rows say in words; every verb of the product has its own."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import console
from console import journal
from console.journal import Change, changes, deed

ROOT = Path(console.__file__).parents[1]
VERBS = sorted(
    {
        node.value
        for package in ("tenants", "controlplane")
        for path in (ROOT / package).rglob("*.py")
        if "migrations" not in path.parts
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.keyword) and call.arg == "verb"
        for node in ast.walk(call.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
snapshots = st.dictionaries(st.sampled_from(["name", "role", "cold_wait_s", "kv_memory_mb", "version_id"]), values)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_words_and_belongs_to_a_subject(verb):
    assert verb in journal.DEEDS
    known = [ending for _, verbs in journal.SUBJECTS.values() for ending in verbs]
    assert verb.startswith(tuple(known))


def test_a_verb_of_another_version_is_read_as_it_is():
    assert deed("rollout.promote_all") == "rollout promote all"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"role": "viewer"}, {"role": "owner"}, [Change("Role", "viewer", "owner")]),
        ({"active": True}, {"active": False}, [Change("Active", "yes", "no")]),
        ({}, {"schedules": [], "kv_memory_mb": 512}, [Change("Kv memory", "", "512 MiB")]),
        ({"active": True}, {"active": True, "reason": "fraud"}, [Change("Reason", "", "fraud")]),
        ({"asleep_after_s": None}, {"asleep_after_s": 300}, [Change("Asleep after", "none", "5 min")]),
        ({"tenant": "evil", "weight": 1}, {}, [Change("Tenant", "evil", ""), Change("Weight", "1", "")]),
        ({"scopes": ["read"]}, {"scopes": ["read", "inference"]}, [Change("Scopes", "read", "read, inference")]),
        ({}, {"expires_at": "2027-02-27T18:08:31.488639+00:00"}, [Change("Expires at", "", "2027-02-27 18:08 UTC")]),
        (
            {"schedules": []},
            {"schedules": [{"days": [0, 1, 2], "from_minute": 480, "to_minute": 1440, "min_replicas": 1}]},
            [Change("Schedules", "none", "Mon–Wed, 08:00–24:00 UTC: at least 1 replica ready")],
        ),
    ],
)  # fmt: skip
def test_a_change_is_told_field_by_field(before, after, told):
    assert changes(before, after) == told


@given(snapshots, snapshots)
def test_whatever_was_written_can_be_told_and_what_stayed_is_not(before, after):
    told = changes(before, after)
    stayed = {name for name in before if name in after and before[name] == after[name]}
    assert len(told) <= len(before.keys() | after.keys()) - len(stayed)
    assert all(len(change.before) <= 200 and len(change.after) <= 200 for change in told)
