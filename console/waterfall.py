"""Where the time of a request went, laid out as a picture and as lines of a table. Pure.

Phases follow one another: each begins where the one before it ended. What nobody measured is told as unknown and gets
no bar; the time that is left over because of it is one bar of its own, at the end, so nothing is drawn as if it took 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dataplane.contracts.usage import Phases

ROW = 10
"""Height of a row, in units of the view box, which is stretched to the page."""
_BAR = 6
_LEAST_WIDTH = 0.4
"""What took no whole per cent is seen all the same."""
PASSING, COMPUTING, WAITING, UNTOLD = 2, 1, 3, 0
"""The colours of a bar, by number."""
LEGEND = ((COMPUTING, "Computing"), (WAITING, "Waiting"), (PASSING, "On the way"), (UNTOLD, "Not told apart"))


@dataclass(frozen=True, slots=True)
class Span:
    """A bar, in units of the view box."""

    x: float
    y: float
    width: float
    height: float
    series: int
    title: str


@dataclass(frozen=True, slots=True)
class Step:
    """A phase. ``took_ms`` None is unknown, and so is ``began_ms`` where something before it is."""

    name: str
    words: str
    took_ms: int | None
    began_ms: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The picture. ``total_ms`` is from the call's arrival to its end; ``is_whole`` says that none of it is missing.

    ``has_gaps`` where something of it was not measured.
    """

    steps: tuple[Step, ...]
    spans: tuple[Span, ...]
    total_ms: int
    height: int
    ticks: tuple[int, ...]
    is_whole: bool
    has_gaps: bool

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """The steps as the picture's description says them: (name, how long)."""
        return tuple((s.name, "unknown" if s.took_ms is None else f"{s.took_ms:,} ms") for s in self.steps)


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a request's serving attempt, all in milliseconds; None where nobody said.

    Args:
        phases: what gateway and replica told.
        earlier_ms: what each attempt before this one took.
        ttft_ms: from the attempt's begin to its first token, by the gateway's clock.
        duration_ms: from the attempt's begin to its end, by the gateway's clock.
        reached: whether it came to a replica at all.
    """

    phases: Phases
    earlier_ms: tuple[int | None, ...] = ()
    ttft_ms: int | None = None
    duration_ms: int | None = None
    reached: bool = True


def waterfall(measured: Measured) -> Waterfall:
    """Lay a request out."""
    parts = _parts(measured)
    told = sum(part.took_ms or 0 for part in parts)
    outer = measured.phases.auth_ms, measured.phases.admission_ms, *measured.earlier_ms, measured.duration_ms
    total = max(told, sum(took or 0 for took in outer))
    has_gaps = any(part.took_ms is None for part in parts)
    if total > told:
        parts.append(
            _Part("Not told apart", "The rest of the whole: no part said where it went.", total - told, UNTOLD)
        )
    steps: list[Step] = []
    spans: list[Span] = []
    at, is_known = 0, True
    for row, part in enumerate(parts):
        detail = f"{part.stopped_ms:,} ms of it preempted" if part.stopped_ms else ""
        began = at if is_known or part.series == UNTOLD else None
        steps.append(Step(part.name, part.words, part.took_ms, began, detail))
        spans += _spans(part, row, at=at, total=total)
        is_known = is_known and part.took_ms is not None
        at += part.took_ms or 0
    return Waterfall(
        tuple(steps), tuple(spans), total, ROW * len(parts), (0, total // 2, total), None not in outer, has_gaps
    )


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    words: str
    took_ms: int | None
    series: int
    stopped_ms: int = 0


def _parts(measured: Measured) -> list[_Part]:
    phases = measured.phases
    parts = [
        _Part("Auth", "The gateway found the key and what it may call.", phases.auth_ms, PASSING),
        _Part("Admission", "The body came, and the limits of tenant and key were held.", phases.admission_ms, PASSING),
    ]
    if measured.earlier_ms:
        lost = "A replica was lost before the first byte: the request began anew."
        parts.append(_Part("Earlier attempts", lost, _sum(measured.earlier_ms), WAITING))
    parts.append(_Part("Cold wait", "No replica was ready: the call waited for one.", phases.cold_ms, WAITING))
    if not measured.reached:
        return parts
    decoded = phases.decode_ms, COMPUTING, phases.preempted_ms or 0
    return [
        *parts,
        _Part("Handover", "To the replica: the body, the template, the tokenizer.", _handover_ms(measured), PASSING),
        _Part("Own budget", "In the queue: the tenant’s own cap of KV memory was full.", phases.own_budget_ms, WAITING),
        _Part("Fair share", "In the queue: it was others’ turn.", phases.fair_share_ms, WAITING),
        _Part("Full memory", "In the queue: nobody could have KV memory.", phases.memory_ms, WAITING),
        _Part("Prefill", "The prompt was read, up to the first token.", phases.prefill_ms, COMPUTING),
        _Part("Decode", "The answer was written, token by token.", *decoded),
        _Part("Delivery", "From the last token to the end of the answer.", _delivery_ms(measured), PASSING),
    ]


def _handover_ms(measured: Measured) -> int | None:
    """What is left of the time to the first token, if all else of it is known."""
    phases = measured.phases
    queued = phases.own_budget_ms, phases.fair_share_ms, phases.memory_ms
    return _left(measured.ttft_ms, (phases.cold_ms, *queued, phases.prefill_ms))


def _delivery_ms(measured: Measured) -> int | None:
    return _left(measured.duration_ms, (measured.ttft_ms, measured.phases.decode_ms))


def _left(whole_ms: int | None, parts: Sequence[int | None]) -> int | None:
    """Return what ``parts`` leave of the whole: nothing where clocks disagree by a little."""
    told = _sum(parts)
    return None if whole_ms is None or told is None else max(0, whole_ms - told)


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _spans(part: _Part, row: int, *, at: int, total: int) -> list[Span]:
    if not part.took_ms:
        return []
    y = ROW * row + (ROW - _BAR) / 2
    width = max(_LEAST_WIDTH, 100 * part.took_ms / total)
    x = min(100 * at / total, 100 - width)
    bar = Span(round(x, 3), y, round(width, 3), _BAR, part.series, f"{part.name}: {part.took_ms:,} ms")
    if not part.stopped_ms:
        return [bar]
    still = min(width, max(_LEAST_WIDTH, 100 * part.stopped_ms / total))
    title = f"Preempted: {part.stopped_ms:,} ms of it; when is not recorded"
    return [bar, Span(round(x + width - still, 3), y + _BAR / 2, round(still, 3), _BAR / 2, WAITING, title)]
