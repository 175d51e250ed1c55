"""Rollouts, their journal, and the switch that freezes all of them."""

from typing import ClassVar

import msgspec
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from controlplane.deployments.models import Deployment
from controlplane.registry.models import ModelVersion
from controlplane.rollouts.plan import Plan
from controlplane.rollouts.states import LIVE, TERMINAL, RolloutState
from controlplane.rollouts.view import View
from dataplane.contracts.ids import Kind
from tenants.ids import PublicId
from tenants.managers import TenantManager
from tenants.models import Tenant, User

_STATES = [(state.value, state.value) for state in RolloutState]
_LIVE = sorted(state.value for state in LIVE)
_TERMINAL = sorted(state.value for state in TERMINAL)
_KNOWN = [value for value, _ in _STATES]
_PROMOTED = [state.value for state in (RolloutState.PROMOTING, RolloutState.BAKING_100, RolloutState.PROMOTED)]
SHARED_FIELDS = (
    "step", "entered_at", "step_started_at", "due_at", "inconclusive_count", "looks", "unready_since",
    "previous_until", "approved_step",
)  # fmt: skip
"""What a rollout's row and its view have under one name and in one form."""
_MAY_KEEP = [state.value for state in (RolloutState.PROMOTED, RolloutState.ROLLING_BACK)]


class Rollout(models.Model):
    """A deployment's way from its stable version to a candidate. Only :mod:`controlplane.rollouts.machine` moves it.

    ``revision`` counts every transition; who commands says which he has seen. ``step`` is an index into the steps of
    ``plan`` (:class:`~controlplane.rollouts.plan.Plan`), -1 before the first. ``author_user`` is the person behind the
    author: of an API key its creator. Evidence counts since ``step_started_at``; ``looks`` counts the verdicts so far.
    ``due_at`` is when the clock ends what the state waits for. ``unready_since``: the candidate has traffic and no
    READY replica since then. ``stumble`` is why the machine's last try failed, empty when it did not.
    """

    id = PublicId(Kind.ROLLOUT)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    deployment = models.ForeignKey(Deployment, on_delete=models.PROTECT, related_name="rollouts")
    stable_version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="+")
    candidate_version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="+")
    candidate_digest = models.CharField(max_length=64)
    state = models.CharField(max_length=24, choices=_STATES, default=RolloutState.DRAFT.value)
    step = models.IntegerField(default=-1)
    plan = models.JSONField()
    revision = models.IntegerField(default=1)
    author_kind = models.CharField(max_length=16)
    author_id = models.CharField(max_length=64)
    author_label = models.CharField(max_length=254)
    author_user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True)
    approved_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", null=True)
    approved_at = models.DateTimeField(null=True)
    approved_step = models.IntegerField(null=True)
    approved_digest = models.CharField(max_length=64, blank=True, default="")
    waivers = models.JSONField(default=dict)
    reason = models.CharField(max_length=1000, blank=True, default="")
    paused_from = models.CharField(max_length=24, choices=_STATES, blank=True, default="")
    inconclusive_count = models.IntegerField(default=0)
    looks = models.IntegerField(default=0)
    entered_at = models.DateTimeField(default=timezone.now)
    step_started_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)
    unready_since = models.DateTimeField(null=True)
    previous_until = models.DateTimeField(null=True)
    stumble = models.CharField(max_length=300, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    ended_at = models.DateTimeField(null=True)

    objects = TenantManager()

    class Meta:
        indexes = [
            models.Index(name="rollout_by_deployment", fields=["deployment", "-created_at"]),
            models.Index(name="rollout_live", fields=["id"], condition=Q(state__in=_LIVE)),
            models.Index(name="rollout_keeps_previous", fields=["id"], condition=Q(previous_until__isnull=False)),
        ]
        constraints = [
            models.UniqueConstraint(name="rollout_live_once", fields=["deployment"], condition=Q(state__in=_LIVE)),
            models.CheckConstraint(name="rollout_state_known", condition=Q(state__in=_KNOWN)),
            models.CheckConstraint(name="rollout_versions_differ", condition=~Q(stable_version=F("candidate_version"))),
            models.CheckConstraint(
                name="rollout_counts",
                condition=Q(step__gte=-1, revision__gte=1, inconclusive_count__gte=0, looks__gte=0),
            ),
            models.CheckConstraint(
                name="rollout_ended_at_its_end",
                condition=Q(state__in=_TERMINAL, ended_at__isnull=False)
                | (~Q(state__in=_TERMINAL) & Q(ended_at__isnull=True)),
            ),
            models.CheckConstraint(
                name="rollout_paused_from_somewhere",
                condition=Q(state=RolloutState.PAUSED.value) ^ Q(paused_from=""),
            ),
            models.CheckConstraint(
                name="rollout_approval_whole",
                condition=Q(
                    approved_by__isnull=True, approved_at__isnull=True, approved_step__isnull=True, approved_digest=""
                )
                | Q(approved_at__isnull=False, approved_step__gte=0, approved_digest=F("candidate_digest")),
            ),
            models.CheckConstraint(
                name="rollout_approver_is_not_the_author",
                condition=Q(approved_by__isnull=True)
                | Q(author_user__isnull=True)
                | ~Q(approved_by=F("author_user")),
            ),
            models.CheckConstraint(
                name="rollout_promoted_by_approval",
                condition=~Q(state__in=_PROMOTED)
                | Q(approved_by__isnull=False),
            ),
            models.CheckConstraint(
                name="rollout_keeps_previous_after_promotion",
                condition=Q(previous_until__isnull=True)
                | Q(state__in=_MAY_KEEP),
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.id

    @property
    def view(self) -> View:
        """What decides its next transition."""
        return View(
            stable_version_id=self.stable_version_id,
            candidate_version_id=self.candidate_version_id,
            candidate_digest=self.candidate_digest,
            plan=msgspec.convert(self.plan, Plan),
            author=self.author_user_id or "",
            state=RolloutState(self.state),
            paused_from=RolloutState(self.paused_from) if self.paused_from else None,
            reason=self.reason,
            **{name: getattr(self, name) for name in SHARED_FIELDS},
        )


class RolloutEvent(models.Model):
    """A transition, for ever. ``sequence`` is the revision that it made, so no step is taken twice or left out.

    ``old`` is empty for the first. ``weight`` is the candidate's after it, in per cent. ``evidence`` is what was judged
    by.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+")
    rollout = models.ForeignKey(Rollout, on_delete=models.PROTECT, related_name="events")
    sequence = models.IntegerField()
    at = models.DateTimeField()
    old = models.CharField(max_length=24, choices=_STATES, blank=True)
    new = models.CharField(max_length=24, choices=_STATES)
    step = models.IntegerField()
    weight = models.IntegerField()
    cause = models.CharField(max_length=1000)
    actor_label = models.CharField(max_length=254)
    evidence = models.JSONField(default=dict)

    objects = TenantManager()

    class Meta:
        ordering: ClassVar[list[str]] = ["sequence"]
        constraints = [
            models.UniqueConstraint(name="rollout_event_once", fields=["rollout", "sequence"]),
            models.CheckConstraint(
                name="rollout_event_states_known", condition=Q(old__in=["", *_KNOWN], new__in=_KNOWN)
            ),
            models.CheckConstraint(
                name="rollout_event_numbers",
                condition=Q(sequence__gte=1, step__gte=-1, weight__gte=0, weight__lte=100),
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.rollout_id} {self.old} > {self.new}"


class RolloutFreeze(models.Model):
    """While its one row is there no rollout moves forward. Everybody may read it: it says why nothing moves."""

    reason = models.CharField(max_length=300)
    frozen_by = models.CharField(max_length=254)
    frozen_at = models.DateTimeField(default=timezone.now)

    objects: ClassVar[models.Manager["RolloutFreeze"]] = models.Manager()

    class Meta:
        constraints = [models.CheckConstraint(name="rollout_one_freeze", condition=Q(id=1))]

    def __str__(self) -> str:
        return f"frozen by {self.frozen_by}"
