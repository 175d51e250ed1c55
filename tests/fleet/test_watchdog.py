from hypothesis import given
from hypothesis import strategies as st

from dataplane.fleet.watchdog import Watchdog

looks = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 2)), st.booleans(), st.floats(0, 1.5)), max_size=40)


@given(looks)
def test_stalled_time_is_exactly_that_since_the_last_sign_of_life(steps: list) -> None:
    dog, now_s, last_sign_s, known = Watchdog(), 0.0, 0.0, None
    for number, (progress, busy, gap_s) in enumerate(steps):
        now_s += gap_s
        stalled_s = dog.look(progress, busy, now_s)
        if progress is not None and (progress != known or not busy):
            known, last_sign_s = progress, now_s
        elif number == 0:
            last_sign_s = now_s
        assert abs(stalled_s - (now_s - last_sign_s)) < 1e-9


@given(st.floats(2.0, 1e6))
def test_time_in_which_the_fleet_itself_slept_is_not_held_against_a_replica(gap_s: float) -> None:
    dog = Watchdog()
    dog.look(1, busy=True, now_s=0.0)
    assert dog.look(1, busy=True, now_s=gap_s) == 2.0


def test_a_new_phase_begins_with_fresh_patience() -> None:
    dog = Watchdog()
    for second in range(5):
        dog.look(1, busy=True, now_s=float(second))
    dog.restart()
    assert dog.look(1, busy=True, now_s=5.0) == 1.0
