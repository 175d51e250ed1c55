"""Numbers as people read them: with units, short, and never more exact than they are."""

from datetime import UTC, datetime
from decimal import Decimal

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from console import rollout_words
from console.idle import span
from controlplane.rollouts.states import RolloutState
from tenants.roles import Scope

register = template.Library()
register.filter(span)

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
_STATE_TONES = {
    "ready": "good",
    "live": "good",
    "asleep": "info",
    "warm": "info",
    "on disk": "info",
    "cold": "info",
    "failing": "bad",
    "dead": "bad",
    "late": "warn",
    "planned": "info",
    "due": "info",
    "well": "good",
    "look here": "warn",
    "down": "bad",
    "running": "info busy",
    "active": "good",
    "settled": "good",
    "stop": "good",
    "length": "good",
    "warm_idle": "info",
    "starting": "warn busy",
    "loading": "warn busy",
    "warming": "warn busy",
    "draining": "warn busy",
    "paused": "warn",
    "open": "info busy",
    "aborted": "warn",
    "refused": "warn",
    "redispatched": "warn",
    "failed": "bad",
    "stopped": "bad",
    "revoked": "bad",
    "ended": "warn",
    "suspended": "bad",
    "uploading": "info busy",
    "validating": "info busy",
    "rejected": "bad",
    "archived": "warn",
    "waiting": "info busy",
    "delivered": "good",
}
_OUTCOMES = {
    "open": "Running",
    "stop": "Finished",
    "length": "Token limit",
    "aborted": "Stopped",
    "redispatched": "Begun anew",
}
"""How a request ended, where the wire's word says little to a reader."""
_TIERS = {"asleep": "asleep", "warm": "warm", "disk": "on disk", "store": "in store"}
_ORIGINS = {"asleep": "from sleep", "warm": "from warm", "disk": "from disk", "store": "from store"}
_KIB = 1024
_SCOPES: dict[str, str] = {
    Scope.INFERENCE: "call models",
    Scope.READ: "read",
    Scope.DEPLOYMENTS: "change deployments",
}


@register.filter
def count(value: int | None) -> str:
    """1234 is ``1,234``, 1234567 is ``1.23M``; None is a dash."""
    if value is None:
        return "–"
    if abs(value) < 10_000:
        return f"{value:,}"
    for size, unit in ((1_000, "k"), (1_000_000, "M")):
        if abs(value) < 999.5 * size:
            return f"{value / size:.3g}{unit}"
    billions = value / 1_000_000_000
    return f"{billions:.3g}B" if abs(billions) < 999.5 else f"{billions:,.0f}B"


@register.filter
def limit(value: int | None) -> str:
    """A limit as a number; None is no limit."""
    return "none" if value is None else count(value)


@register.filter
def cost(microusd: int, is_priced: bool) -> str:
    """What was charged. Without any price nothing is, which is not the same as being free."""
    return usd(microusd) if microusd or is_priced else "no price set"


@register.filter
def usd(microusd: int) -> str:
    """Micro-USD as dollars: two places from one dollar, four below, and never 0 for something."""
    if microusd == 0:
        return "$0"
    dollars = Decimal(microusd) / 1_000_000
    if dollars < Decimal("0.0001"):
        return "<$0.0001"
    return f"${dollars:,.2f}" if dollars >= 1 else f"${dollars:.4f}"


@register.filter
def ms(value: int | None) -> str:
    """Milliseconds, from ten seconds on as seconds; None is a dash."""
    if value is None:
        return "–"
    return f"{value:,} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


@register.filter
def ago(moment: datetime | None) -> SafeString | str:
    """A ``<time>`` that says how long ago, with the UTC moment for those who want it; None is ``never``."""
    if moment is None:
        return "never"
    seconds = round((timezone.now() - moment).total_seconds())
    text = _span(abs(seconds))
    words = "just now" if abs(seconds) < 5 else f"in {text}" if seconds < 0 else f"{text} ago"
    return format_html('<time datetime="{0}" title="{0}">{1}</time>', moment.strftime("%Y-%m-%dT%H:%M:%SZ"), words)


def _span(seconds: int) -> str:
    for size, unit in ((_DAY_S, "day"), (_HOUR_S, "hour"), (_MINUTE_S, "min"), (1, "s")):
        if seconds >= size * (1 if size == 1 else 0.98):  # made a moment ago for 90 days: that is 90 days, not 89
            number = max(1, int(seconds / size + 0.02))
            return f"{number} {unit}{'' if number == 1 or size < _HOUR_S else 's'}"
    return "a moment"


@register.filter
def moment(unix_ms: int) -> datetime:
    """The moment of Unix milliseconds."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC)


@register.filter
def bytes(size_bytes: int) -> str:  # noqa: A001 - a filter is named as a template reads it
    """Bytes in the unit that suits them: ``512 MiB``."""
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB"):
        if size < _KIB - 0.5:
            return f"{size:.3g} {unit}"
        size /= _KIB
    return f"{size:.3g} GiB" if size < _KIB else f"{size:,.0f} GiB"


@register.filter
def tier(name: str) -> str:
    """How a resting deployment is kept: where its next start begins."""
    return _TIERS.get(name, name)


@register.filter
def origin(name: str) -> str:
    """Where a start begins, said after how long it takes."""
    return _ORIGINS.get(name, name)


@register.filter
def words(state: str) -> str:
    """A state or an outcome as words: ``warm_idle`` is ``Warm idle``."""
    return _OUTCOMES.get(state) or state.replace("_", " ").capitalize()


@register.filter
def rollout_state(state: str) -> str:
    """A state of a rollout as people call it."""
    return rollout_words.STATES[RolloutState(state)][0]


@register.filter
def rollout_tone(state: str) -> str:
    """The classes of its badge."""
    return rollout_words.STATES[RolloutState(state)][1]


@register.filter
def scope(name: str) -> str:
    """A scope of a key, as what the key may do."""
    return _SCOPES.get(name, name)


@register.filter
def tone(state: str) -> str:
    """The classes of a state's badge."""
    return _STATE_TONES.get(state, "")
