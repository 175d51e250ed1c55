from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from console.views.home import judge, quota_bars
from console.views.usage import first_moment, moments
from controlplane.deployments.selectors import DeploymentState, Standing
from controlplane.metering.selectors import Dimension
from dataplane.contracts.catalog import Limits

NOW = datetime(2026, 3, 31, 15, 0, tzinfo=UTC)


def summary(standing: Standing = Standing.LIVE):
    return SimpleNamespace(name="chat", state=DeploymentState(standing))


def failure(minutes_ago: int):
    return SimpleNamespace(started_at=NOW - timedelta(minutes=minutes_ago))


@pytest.mark.parametrize(
    ("served", "errors", "badge"),
    [
        ([], [], "Nothing served"),
        ([summary()], [], "All well"),
        ([summary(Standing.STARTING)], [], "Not ready"),
        ([summary(Standing.FAILING)], [], "Not ready"),
        ([summary(Standing.ASLEEP), summary(Standing.DISK)], [], "All well"),
        ([summary(), summary(Standing.STARTING)], [failure(1)], "Not ready"),
        ([summary()], [failure(59)], "Look here"),
        ([summary()], [failure(61)], "All well"),
        ([summary(Standing.PAUSED)], [], "Paused"),
        ([summary(Standing.PAUSED), summary()], [], "All well"),
        ([summary(Standing.ACTIVE)], [], "All well"),
    ],
)
def test_the_verdict_names_what_is_wrong_first(served, errors, badge):
    assert judge(served, errors, NOW).badge == badge


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
