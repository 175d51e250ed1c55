"""The spans of time that charts are made of."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from controlplane.rollouts.series import MOST_BUCKETS, grid

BEGIN = datetime(2026, 1, 31, 14, 5, 7, tzinfo=UTC)
_lengths = st.floats(0, 40 * 24 * 3600)


@given(_lengths, st.booleans())
def test_a_chart_covers_its_time_in_few_spans(length_s, is_over):
    now = BEGIN + timedelta(seconds=length_s)
    since, until, count = grid(BEGIN, now if is_over else None, now)
    assert 1 <= count <= MOST_BUCKETS
    assert since <= BEGIN
    assert until >= now
    assert not is_over or until == now
    assert since < until


def test_the_spans_of_what_goes_on_stay_where_they_are_however_often_it_is_asked():
    widths = set()
    for seconds in range(400, 440):
        since, until, count = grid(BEGIN, None, BEGIN + timedelta(seconds=seconds))
        width = (until - since) / count
        widths.add((width, since.timestamp() % width.total_seconds()))
    assert len(widths) == 1
