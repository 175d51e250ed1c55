"""How an idle deployment is kept, in words: pure, so that the form, the page and the journal say the same."""

from dataplane.contracts.catalog import IdlePolicy, KeepWarm

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_HOUR_MINUTES = 60
_UNITS = ((24 * 3600, "day"), (3600, "hour"), (60, "min"))


def span(seconds: int) -> str:
    """90000 is ``25 hours``, 300 is ``5 min``: the largest unit in which the number is whole."""
    for size, unit in _UNITS:
        if seconds and seconds % size == 0:
            number = seconds // size
            return f"{number} {unit}{'s' if number != 1 and unit != 'min' else ''}"
    return f"{seconds} s"


def idle_words(policy: IdlePolicy) -> str:
    """Say when an idle deployment steps down, and how far."""
    steps = [
        f"{tier} after {span(after_s)}"
        for tier, after_s in (
            ("asleep", policy.asleep_after_s),
            ("warm", policy.warm_after_s),
            ("on disk", policy.disk_after_s),
        )
        if after_s is not None
    ]
    return f"{', '.join(steps).capitalize()} without a call." if steps else "It stays ready however idle it is."


def schedule_words(window: KeepWarm) -> str:
    """Say when replicas are kept ready."""
    days = sorted(window.days)
    run = len(days) > 2 and days == list(range(days[0], days[-1] + 1))
    named = f"{DAYS[days[0]]}–{DAYS[days[-1]]}" if run else ", ".join(DAYS[day] for day in days)
    ready = f"{window.min_replicas} replica{'' if window.min_replicas == 1 else 's'}"
    return f"{named}, {clock(window.from_minute)}–{clock(window.to_minute)} UTC: at least {ready} ready"


def clock(minute: int) -> str:
    """A minute of the day as ``08:30``; the last one's end is ``24:00``."""
    return f"{minute // _HOUR_MINUTES:02}:{minute % _HOUR_MINUTES:02}"
