"""Probes of isolation: what the fleet asks of a replica to see what one tenant can learn of another, and what it found.

Every trial compares two times that differ only if something leaks. A prompt is sent by one made-up tenant and then by
the same or the other; or a stream runs alone and then beside another tenant's. Whether an observer could tell the two
apart is the area under the ROC curve of both samples (:mod:`dataplane.contracts.auc`).
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from dataplane.contracts.auc import Bins, Separation, merged, separation
from dataplane.contracts.catalog import Share

PRIMER = "probe:primer"
"""The made-up tenant that sends first. No real tenant has such an id: theirs begin with ``ten_``."""
STRANGER = "probe:stranger"
"""The one that looks whether it can see that."""
SHARE = Share(cap_tokens=1024)
"""Of each: no guarantee, the lowest weight, and a cap that two streams of a probe and what they leave cached fit in."""
TENANTS = {PRIMER: SHARE, STRANGER: SHARE}


class ProbeKind(StrEnum):
    """What a probe looks at.

    WITHIN: a tenant finds its own prompt cached. It is the control: probes that cannot see this see nothing. ACROSS: a
    tenant would find another's. BATCH: its tokens come slower while another runs. PACED: the same, with its tokens
    paced.
    """

    WITHIN = "within"
    ACROSS = "across"
    BATCH = "batch"
    PACED = "paced"


class ProbeReport(msgspec.Struct, frozen=True):
    """What probes of one kind found on one replica since it is READY; it replaces what was said of it before.

    ``slow`` holds the times that would be longer if anything leaks, ``fast`` the others: of prompts never sent and of
    prompts sent before; of streams beside another and alone. Only the latest few thousand are kept. Of the trials in
    ``fast`` whose prompt had been sent before, ``cached_tokens`` of ``prompt_tokens`` came from the cache.
    ``given_up``: trials that ended because the replica had real work. ``pace_ms`` is that of PACED.
    """

    replica_id: str
    deployment_id: str
    version_id: str
    kind: ProbeKind
    at_ms: int
    slow: Bins
    fast: Bins
    prompt_tokens: int = 0
    cached_tokens: int = 0
    given_up: int = 0
    pace_ms: int = 0


def verdict(reports: Iterable[ProbeReport]) -> Separation | None:
    """Return how well the two samples of ``reports``, all of one kind, can be told apart; None without any."""
    known = list(reports)
    return separation(merged(report.slow for report in known), merged(report.fast for report in known))


class ProbeOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is posted to the fleet's ``/probes``: probe without a pause until ``samples`` more times are in each sample.

    Of BATCH and PACED, which take longer, a tenth as many.
    """

    samples: int


class ProbeProgress(msgspec.Struct, frozen=True):
    """What ``GET /probes`` of the fleet answers: ``trials_left`` of the latest order, and what was found so far."""

    trials_left: int
    reports: tuple[ProbeReport, ...]
