"""What isolation a tenant has on a deployment, as the actor may see it.

A tenant is told of itself and of probes. What follows from others' requests is for those who run the platform: which
trials gave way to real work, and how many hits are lost because caches are apart.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import msgspec
from django.db.models import Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from controlplane.deployments.models import Deployment, DeploymentState, Grant
from controlplane.isolation.models import CacheBucket, ProbeRow, TenantBucket
from controlplane.isolation.reading import Reading
from controlplane.isolation.series import Bucket, Slot, Span, Window, latest, slots, whole, window
from controlplane.isolation.standing import FIGURES_STALE_AFTER, Finding, Judgement, judge
from dataplane.contracts.catalog import Share
from dataplane.contracts.probes import ProbeKind, ProbeReport, verdict
from tenants.actor import Actor, reading_as, require
from tenants.errors import NotFound
from tenants.roles import Permission

_TOLD_EVERY = timedelta(minutes=15)
_ROUND_TRIALS, _ROUND_FEW_TRIALS, _ROUND_TOKENS = 100, 10, 1_000
_AUC_DIGITS, _AUC_DIGITS_OF_FEW = 3, 1
_LOOKUPS = ("queries_tokens", "hits_tokens", "lost_tokens")


@dataclass(frozen=True, slots=True)
class Isolation:
    """A tenant on a deployment.

    Args:
        tenant: its slug.
        share: what it is granted on the deployment as a whole.
        now: what it has now; None where no replica was heard of late.
        whole: the span as one reading.
        seen_at: when a replica was heard last, within the span.
        slots: the span over time.
        findings: what probes found on the deployment.
        judgement: how each promise stands.
        is_alone: nobody else may call the deployment. An owner knows; to a guest it is never so.
    """

    tenant: str
    share: Share
    now: Reading | None
    whole: Reading
    seen_at: datetime | None
    slots: tuple[Slot, ...]
    findings: Mapping[ProbeKind, Finding]
    judgement: Judgement
    is_alone: bool


@dataclass(frozen=True, slots=True)
class Everybody:
    """All tenants on a deployment, for those who run the platform.

    Args:
        deployment: the row.
        tenants: each one's isolation, by slug.
        findings: what probes found, exactly.
        queries_tokens: prompt tokens of all tenants that were looked up in their caches, within the span.
        hits_tokens: those that were found.
        lost_tokens: those that one cache for all would have found besides: what it costs that caches are apart.
    """

    deployment: Deployment
    tenants: tuple[Isolation, ...]
    findings: Mapping[ProbeKind, Finding]
    queries_tokens: int
    hits_tokens: int
    lost_tokens: int

    @property
    def is_alone(self) -> bool:
        """Whether there is but one tenant."""
        return len(self.tenants) == 1


def get_isolation(*, actor: Actor, deployment_id: str, span: Span = Span.DAY) -> Isolation:
    """Return the tenant's own isolation on a deployment that it may call.

    Raises:
        NotFound: there is no such deployment for it.
    """
    require(actor, Permission.DEPLOYMENTS_READ)
    now = timezone.now()
    over = window(span, now)
    with reading_as(actor):
        living = Grant.objects.exclude(deployment__state=DeploymentState.DELETED)
        grants = {each.grantee_id: each for each in living.filter(deployment_id=deployment_id)}
        grant = grants.get(actor.tenant.pk)
        if grant is None:
            raise NotFound("There is no such deployment.")
        rows = TenantBucket.objects.for_tenant(actor.tenant).filter(deployment_id=deployment_id, at__gte=over.since)
        buckets = [_bucket(row) for row in rows]
        findings = _findings(deployment_id)
    # Judged by what was found, told in round figures.
    is_alone = grant.tenant_id == grant.grantee_id and len(grants) == 1  # a guest sees its own grant only
    exact = _isolation(grant, buckets, findings, over=over, now=now, is_alone=is_alone)
    return replace(exact, findings={kind: _coarse(finding) for kind, finding in findings.items()})


def list_isolation(*, actor: Actor, deployment_id: str, span: Span = Span.HOUR) -> Everybody:
    """Return a deployment and the isolation of each tenant on it, by slug: for those who run the platform.

    Raises:
        NotFound: there is no such deployment.
    """
    require(actor, Permission.PLATFORM_FLEET)
    now = timezone.now()
    over = window(span, now)
    with reading_as(actor):
        living = Deployment.objects.exclude(state=DeploymentState.DELETED)
        deployment = living.filter(pk=deployment_id).first()
        if deployment is None:
            raise NotFound("There is no such deployment.")
        grants = list(Grant.objects.filter(deployment_id=deployment_id).order_by("grantee_slug"))
        buckets: dict[str, list[Bucket]] = defaultdict(list)
        for row in TenantBucket.objects.filter(deployment_id=deployment_id, at__gte=over.since):
            buckets[row.tenant_id].append(_bucket(row))
        findings = _findings(deployment_id)
        caches = CacheBucket.objects.filter(deployment_id=deployment_id, at__gte=over.since)
        sums = caches.aggregate(**{name: Coalesce(Sum(name), 0) for name in _LOOKUPS})
    is_alone = len(grants) == 1
    tenants = (
        _isolation(grant, buckets[grant.grantee_id], findings, over=over, now=now, is_alone=is_alone)
        for grant in grants
    )
    return Everybody(deployment=deployment, tenants=tuple(tenants), findings=findings, **sums)


def _isolation(
    grant: Grant,
    buckets: list[Bucket],
    findings: Mapping[ProbeKind, Finding],
    *,
    over: Window,
    now: datetime,
    is_alone: bool,
) -> Isolation:
    series = slots(buckets, over)
    seen_at = max((bucket.seen_at for bucket in buckets), default=None)
    together = whole(series)
    return Isolation(
        tenant=grant.grantee_slug,
        share=grant.share,
        now=latest(buckets, now - FIGURES_STALE_AFTER),
        whole=together,
        seen_at=seen_at,
        slots=series,
        findings=findings,
        judgement=judge(together, seen_at, findings, now=now, is_alone=is_alone),
        is_alone=is_alone,
    )


def _bucket(row: TenantBucket) -> Bucket:
    return Bucket(row.at, row.seen_at, (row.node, row.version_id), row.reading)


def _findings(deployment_id: str) -> dict[ProbeKind, Finding]:
    reports: dict[ProbeKind, list[ProbeReport]] = defaultdict(list)
    for row in ProbeRow.objects.filter(deployment_id=deployment_id):
        reports[ProbeKind(row.kind)].append(row.told)
    return {kind: _finding(kind, told) for kind, told in reports.items()}


def _finding(kind: ProbeKind, reports: Iterable[ProbeReport]) -> Finding:
    known = list(reports)
    return Finding(
        kind=kind,
        separation=verdict(known),
        at=datetime.fromtimestamp(max(report.at_ms for report in known) / 1000, UTC),
        prompt_tokens=sum(report.prompt_tokens for report in known),
        cached_tokens=sum(report.cached_tokens for report in known),
        pace_ms=max(report.pace_ms for report in known),
        given_up=sum(report.given_up for report in known),
    )


def _coarse(finding: Finding) -> Finding:
    """Return what a tenant is told: probes give way to real work, so when each one ran would tell of others' work."""
    seconds = int(_TOLD_EVERY.total_seconds())
    separation = finding.separation
    if separation is not None:
        # Of few trials each one moves the figures, which would then tell when it ran.
        are_few = finding.trials < _ROUND_TRIALS
        digits, unit = (_AUC_DIGITS_OF_FEW, _ROUND_FEW_TRIALS) if are_few else (_AUC_DIGITS, _ROUND_TRIALS)
        separation = msgspec.structs.replace(
            separation,
            **{name: round(getattr(separation, name), digits) for name in ("auc", "low", "high", "tied")},
            **{name: _rounded(getattr(separation, name), unit) for name in ("num_slow", "num_fast")},
        )
    return replace(
        finding,
        separation=separation,
        at=datetime.fromtimestamp(finding.at.timestamp() // seconds * seconds, UTC),
        prompt_tokens=_rounded(finding.prompt_tokens, _ROUND_TOKENS),
        cached_tokens=_rounded(finding.cached_tokens, _ROUND_TOKENS),
        given_up=0,
    )


def _rounded(number: int, unit: int) -> int:
    """Return a number in whole units, and one below a unit as it is: a few are never told as none."""
    return number // unit * unit if number > unit else number
