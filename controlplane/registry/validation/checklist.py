"""The checklist of a version: its lines in order, and which checks of the inspector each line stands for. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dataplane.contracts.verdict import Check, CheckState


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the checklist; ``checks`` are the inspector's that it stands for, in the order they run."""

    name: str
    title: str
    checks: tuple[str, ...] = ()


LINES = (
    Line("files", "Every file has arrived whole"),
    Line("names", "Only files that a model needs", ("files", "documents")),
    Line("config", "The config is one that we run", ("config",)),
    Line("weights", "The weights can be read", ("weights",)),
    Line("tensors", "The tensors are those that the config asks for", ("tensors",)),
    Line("finite", "Every weight is a finite number", ("finite",)),
    Line("digests", "The files are those that arrived", ("digests",)),
    Line("tokenizer", "The tokenizer works", ("tokenizer", "tokenizer_trial")),
    Line("template", "The chat template works", ("chat_template", "template_trial")),
    Line("memory", "It fits the memory of a device"),
    Line("smoke", "It generates a token"),
    Line("publish", "It is one of a kind"),
)
"""Every line, as people see them."""
INSPECTED = tuple(line for line in LINES if line.checks)
_LINE_OF = {check: line for line in INSPECTED for check in line.checks}


@dataclass(frozen=True, slots=True)
class Standing:
    """How a line stands by what the inspector has said so far; ``over`` when it will say no more about it."""

    line: Line
    over: bool
    state: CheckState
    reason: str = ""
    mend: str = ""


def line_of(check: str) -> Line | None:
    """Return the line that a check of the inspector belongs to; None for one that is not known here."""
    return _LINE_OF.get(check)


def standings(checks: Iterable[Check]) -> list[Standing]:
    """Return how the inspected lines stand: failed by the first check that did, passed when all of theirs have."""
    by_name = {check.name: check for check in checks}
    return [standing for line in INSPECTED if (standing := _standing(line, by_name)) is not None]


def _standing(line: Line, by_name: Mapping[str, Check]) -> Standing | None:
    ended = [by_name[name] for name in line.checks if name in by_name]
    if not ended:
        return None
    failed = next((check for check in ended if check.state is CheckState.FAILED), None)
    if failed is not None:
        return Standing(line, True, CheckState.FAILED, failed.reason, failed.mend)
    over = len(ended) == len(line.checks)
    if over and all(check.state is CheckState.PASSED for check in ended):
        return Standing(line, True, CheckState.PASSED)
    return Standing(line, over, CheckState.NOT_RUN)
