from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from console.charts import HEIGHT, SLOT, bars, meter, nice_ceiling, ranges

counts = st.integers(min_value=0, max_value=10**12)
series = st.lists(counts, max_size=40).map(lambda values: [(f"l{index}", value) for index, value in enumerate(values)])


@given(counts)
def test_a_ceiling_is_round_not_below_and_never_far_above(value):
    most = nice_ceiling(value)
    assert most >= value
    assert most <= max(1, 2 * value)
    assert str(most).rstrip("0") in {"1", "2", "4", "6", "8"}


@given(series)
def test_bars_stand_in_their_slots_on_the_ground_and_inside_the_plot(values):
    chart = bars(values)
    assert [(bar.label, bar.value) for bar in chart.bars] == values
    for position, bar in enumerate(chart.bars):
        assert SLOT * position <= bar.x < bar.x + bar.width <= SLOT * (position + 1) <= chart.width
        assert bar.y >= 0
        assert abs(bar.y + bar.height - HEIGHT) < 0.02


@given(series)
def test_a_bar_is_as_high_as_the_axis_says(values):
    chart = bars(values)
    for bar in chart.bars:
        assert abs(bar.height / HEIGHT * chart.ticks[0] - bar.value) <= 0.0001 * chart.ticks[0]


@given(series)
def test_ticks_are_evenly_spaced_whole_numbers_down_to_zero(values):
    ticks = bars(values).ticks
    assert ticks[-1] == 0
    assert len({upper - lower for upper, lower in pairwise(ticks)}) == 1


@given(series)
def test_no_more_names_than_fit_and_the_first_is_always_named(values):
    names = [bar.name for bar in bars(values).bars if bar.name]
    assert len(names) <= 8
    assert names[:1] == [label for label, _ in values[:1]]


@given(series)
def test_what_a_reader_hears_is_what_is_drawn(values):
    chart = bars(values)
    assert chart.total == sum(value for _, value in values)
    assert (chart.peak.value if chart.peak else 0) == max((value for _, value in values), default=0)


@given(st.lists(counts, max_size=5), counts)
def test_a_meter_never_overflows_and_leaves_what_is_free(parts, total):
    drawn = meter([("part", value) for value in parts], total)
    ends = 0.0
    for segment in drawn.segments:
        assert abs(segment.x - ends) < 0.01
        ends = segment.x + segment.width
    assert ends <= 100.01
    assert drawn.free == max(0, total - sum(parts))


@given(series, st.lists(counts, max_size=2))
def test_a_mark_stands_at_its_value_on_the_scale_of_the_bars(values, marks):
    chart = bars(values, [("mark", value) for value in marks])
    for mark in chart.marks:
        assert 0 <= mark.y <= HEIGHT
        assert abs((HEIGHT - mark.y) / HEIGHT * chart.ticks[0] - mark.value) <= 0.0001 * chart.ticks[0]


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 3).map(sorted), max_size=4))
def test_a_measured_value_is_drawn_between_its_bounds_on_one_scale(measured):
    chart = ranges([("row", *three, 1) for three in measured], least=0.4, most=1.0, mark=0.55)
    assert chart.mark == 25.0
    assert chart.height == SLOT * len(measured)
    for row, (low, value, high) in zip(chart.rows, measured, strict=True):
        assert 0 <= row.low <= row.value <= row.high <= 100
        assert row.told == f"{value:.3f} ({low:.3f} to {high:.3f})"
        if value >= 0.4:
            assert abs(0.4 + 0.6 * row.value / 100 - value) < 0.001
