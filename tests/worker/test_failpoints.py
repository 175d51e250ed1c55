import pytest

from dataplane.contracts import failpoints


def test_nothing_is_armed_unless_the_environment_says_so() -> None:
    assert failpoints.parse("") == {}
    failpoints.hit("worker.admitted")


def test_points_are_armed_by_name_action_and_hit() -> None:
    assert failpoints.parse("a.b=kill, c=raise@3") == {"a.b": ("kill", 1), "c": ("raise", 3)}


@pytest.mark.parametrize("text", ["a", "a=explode", "=kill", "a=kill@x", "a=kill@-1"])
def test_a_text_that_arms_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PAGODA_FAILPOINTS"):
        failpoints.parse(text)


def test_a_point_acts_at_its_hit_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse("p=raise@2"))
    monkeypatch.setattr(failpoints, "_hits", {})
    failpoints.hit("p")
    failpoints.hit("other")
    with pytest.raises(failpoints.FailpointError):
        failpoints.hit("p")
    failpoints.hit("p")
