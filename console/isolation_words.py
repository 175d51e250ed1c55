"""What isolation is kept, in words: pure, so that the page, the platform's page and the tests say the same."""

from dataclasses import dataclass

from controlplane.isolation.reading import Reading
from controlplane.isolation.selectors import Isolation
from controlplane.isolation.standing import AUC_LIMIT, CONTROL_AUC, ENOUGH_TRIALS, Finding, Standing
from dataplane.contracts.generation import PreemptionCause
from dataplane.contracts.probes import ProbeKind

BADGES = {
    Standing.KEPT: ("Kept", "good"),
    Standing.UNMEASURED: ("Not measured yet", "info"),
    Standing.STALE: ("Old", "warn"),
    Standing.FEW: ("Too few trials yet", "info"),
    Standing.UNPROVEN: ("Not proven", "warn"),
    Standing.BLIND: ("Proves nothing", "warn"),
    Standing.BROKEN: ("Broken", "bad"),
}
"""What a badge says of a promise, and its tone."""
CAUSES: dict[str, tuple[str, str]] = {
    PreemptionCause.GROWTH: ("Memory ran out", "A running request needed the next block and none was left anywhere."),
    PreemptionCause.RECLAIM: ("Claimed back", "A tenant claimed its guarantee, of which you had borrowed."),
    PreemptionCause.SHARES: ("Your share was lowered", "You held more than the new cap."),
    PreemptionCause.OWN: ("By your own", "A long answer made room for another request of yours."),
}
"""Why a request lost its memory: a name and a sentence."""
PROBES = {
    ProbeKind.ACROSS: "Another tenant’s prompt",
    ProbeKind.WITHIN: "Control: its own prompt",
    ProbeKind.BATCH: "Whether another runs",
    ProbeKind.PACED: "The same, paced",
}
_HEADLINES = {
    Standing.KEPT: "Nobody else’s requests have slowed yours beyond their share. Here is how we know.",
    Standing.UNMEASURED: "There is something that is not measured yet.",
    Standing.STALE: "These figures are old.",
    Standing.FEW: "Nothing speaks against it, and there are too few probes to prove it yet.",
    Standing.UNPROVEN: "Nothing speaks against it, and the probes do not prove it.",
    Standing.BLIND: "The probes fail their own control, so they prove nothing.",
    Standing.BROKEN: "A promise was broken.",
}
_ADMIN = "That is a fault of the platform, not of your requests: tell its administrator."


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise with its standing, told in a sentence or two."""

    name: str
    standing: Standing
    words: str

    @property
    def badge(self) -> tuple[str, str]:
        """What its badge says, and the tone."""
        return BADGES[self.standing]


def headline(found: Isolation) -> str:
    """Return the one sentence that stands above all."""
    return _HEADLINES[found.judgement.worst]


def promises(found: Isolation) -> tuple[Promise, ...]:
    """Return each promise as it stands, in words."""
    judged = found.judgement
    return (
        Promise("Your memory", judged.memory, _memory(judged.memory, found.whole)),
        Promise("Your turn", judged.turns, _turns(judged.turns, found.whole)),
        Promise("Your prompts", judged.cache, _cache(judged.cache, found)),
    )


def _memory(standing: Standing, reading: Reading) -> str:
    if standing is Standing.BROKEN:
        times = "once" if reading.breaches == 1 else f"{reading.breaches:,} times"
        return f"You lost memory to another tenant {times} while you were within your guarantee. {_ADMIN}"
    if standing is Standing.KEPT:
        return "No request of yours lost memory to another tenant while you were within your guarantee."
    return _untold(standing)


def _turns(standing: Standing, reading: Reading) -> str:
    if standing is Standing.BROKEN:
        return f"{_gap(reading)} {_ADMIN}"
    if standing is Standing.KEPT:
        return _gap(reading) if reading.bound_units else "Your requests never had to wait for others’ turns."
    return _untold(standing)


def _gap(reading: Reading) -> str:
    return (
        f"While you waited, another tenant got {reading.gap_units:,.0f} weighted tokens ahead of you at most. "
        f"The bound that is proven is {reading.bound_units:,.0f}."
    )


def _untold(standing: Standing) -> str:
    if standing is Standing.STALE:
        return "No replica was heard for a while: none serves, or the fleet cannot report. What was told last is below."
    return "No replica has told of you in this time. Figures come within seconds once one is ready."


def _cache(standing: Standing, found: Isolation) -> str:
    if found.is_alone:
        return "Nobody else may call this deployment, so nobody could look. Probes begin when another tenant may."
    across, control = found.findings.get(ProbeKind.ACROSS), found.findings.get(ProbeKind.WITHIN)
    if across is None or control is None:
        return "Probes run while replicas are idle. None has ended yet."
    words = {
        Standing.KEPT: "Who sends a prompt that you have sent before cannot tell it from a new one by its time.",
        Standing.STALE: "Who sends a prompt that you have sent could not tell, when probes last ran, over a day ago.",
        Standing.FEW: f"{ENOUGH_TRIALS:,} trials of each are wanted, and there are {_fewest(across, control):,}.",
        Standing.UNPROVEN: f"The upper one is above {AUC_LIMIT}. More trials narrow it, noise widens it.",
        Standing.BLIND: (
            f"They should find a tenant’s own prompt in its cache with at least {CONTROL_AUC}, and do not. "
            "What they say of other tenants counts for nothing until they do."
        ),
        Standing.BROKEN: f"Another tenant’s prompt could be told from a new one. {_ADMIN}",
        Standing.UNMEASURED: "Probes run while replicas are idle. Their first times are still to come.",
    }  # fmt: skip
    return words[standing]


def _fewest(across: Finding, control: Finding) -> int:
    return min(across.trials, control.trials)
