from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from console.views.home import Hour, judge, quota_bars
from console.views.usage import first_moment, moments
from controlplane.deployments.selectors import DeploymentState, Standing
from controlplane.metering.selectors import Dimension
from dataplane.contracts.catalog import Limits

NOW = datetime(2026, 3, 31, 15, 0, tzinfo=UTC)


def summary(standing: Standing = Standing.LIVE):
    return SimpleNamespace(name="chat", state=DeploymentState(standing))


@pytest.mark.parametrize(
    ("served", "failed", "badge"),
    [
        ([], 0, "Nothing served"),
        ([summary()], 0, "All well"),
        ([summary(Standing.STARTING)], 0, "Not ready"),
        ([summary(Standing.FAILING)], 0, "Not ready"),
        ([summary(Standing.ASLEEP), summary(Standing.DISK)], 0, "All well"),
        ([summary(), summary(Standing.STARTING)], 1, "Not ready"),
        ([summary()], 1, "Look here"),
        ([summary(Standing.PAUSED)], 0, "Paused"),
        ([summary(Standing.PAUSED), summary()], 0, "All well"),
        ([summary(Standing.ACTIVE)], 0, "All well"),
    ],
)
def test_the_verdict_names_what_is_wrong_first(served, failed, badge):
    assert judge(served, [Hour("13:00", 9, 9), Hour("14:00", 9, failed), Hour("15:00", 9, 0)]).badge == badge


@pytest.mark.parametrize(("num_failed", "words"), [(1, "1 request failed or was refused"), (1234, "1,234 requests")])
def test_the_verdict_tells_how_many_requests_failed_and_since_when(num_failed, words):
    sentence = judge([summary()], [Hour("14:00", 9000, num_failed - 1), Hour("15:00", 9, 1)]).sentence
    assert sentence.startswith(words)
    assert sentence.endswith("since 14:00 UTC.")


def test_a_bar_for_each_limit_that_is_set_and_a_warning_when_it_is_near():
    assert quota_bars(Limits(), 5, 5) == []
    near, far = quota_bars(Limits(requests_per_minute=10, tokens_per_minute=1000), 8, 799)
    assert (near.is_near, near.meter.free) == (True, 2)
    assert (far.is_near, far.meter.free) == (False, 201)


@pytest.mark.parametrize(
    ("span_hours", "unit", "bars"), [(24, Dimension.HOUR, 24), (7 * 24, Dimension.DAY, 7), (720, Dimension.DAY, 30)]
)
@pytest.mark.parametrize("until", [NOW, NOW.replace(hour=0), NOW.replace(hour=1)])
def test_a_range_is_whole_units_up_to_the_one_that_runs(span_hours, unit, bars, until):
    since = first_moment(until, timedelta(hours=span_hours), unit)
    found = moments(since, until, unit)
    assert len(found) == bars
    assert found[-1][0] < until
    assert until - found[-1][0] <= timedelta(hours=1 if unit is Dimension.HOUR else 24)
