from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from controlplane.jobs import lease
from controlplane.jobs.lease import JobLife, JobState, LeaseLostError

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Leases(RuleBasedStateMachine):
    """Workers claim, sleep, crash, beat, commit and fail in any order; messages come twice; time passes."""

    claims = Bundle("claims")

    @initialize()
    def a_job_is_queued(self):
        self.now = EPOCH
        self.life = JobLife(state=JobState.QUEUED, run_at=EPOCH)
        self.effects = 0
        self.fences = []

    @rule(target=claims)
    def a_message_arrives(self):
        claimed = lease.claim(self.life, self.now)
        if claimed is None:
            return -1  # a worker that got nothing, and commits all the same where a test lets it
        assert claimed.fence > max(self.fences, default=0)
        self.fences.append(claimed.fence)
        self.life = claimed
        return claimed.fence

    @rule(seconds=st.integers(0, 60))
    def time_passes(self, seconds):
        self.now += timedelta(seconds=seconds)

    @rule(fence=claims)
    def a_worker_beats(self, fence):
        self._attempt(fence, lambda: lease.extend(self.life, fence, self.now))

    @rule(fence=claims)
    def a_worker_commits(self, fence):
        """The worker stays: a commit whose answer was lost is tried again."""
        if self._attempt(fence, lambda: lease.complete(self.life, fence)):
            self.effects += 1

    @rule(fence=claims, jitter=st.floats(0, 1, exclude_max=True))
    def a_worker_fails(self, fence, jitter):
        self._attempt(fence, lambda: lease.fail(self.life, fence, self.now, "broken", jitter))

    @rule(fence=consumes(claims))
    def a_worker_crashes(self, fence):
        """Nothing is told to anybody."""

    @rule(jitter=st.floats(0, 1, exclude_max=True))
    def the_clock_sweeps(self, jitter):
        swept = lease.expire(self.life, self.now, jitter)
        if swept is not None:
            assert self.life.expires_at <= self.now
            self.life = swept

    def _attempt(self, fence, step):
        try:
            self.life = step()
        except LeaseLostError:
            return False
        assert fence == self.fences[-1], "only the latest claim decides anything"
        return True

    @invariant()
    def there_is_one_effect_and_it_is_the_done_jobs(self):
        if hasattr(self, "life"):
            assert self.effects == (self.life.state is JobState.DONE)
            assert self.life.attempts <= lease.MAX_ATTEMPTS
            assert (self.life.expires_at is not None) == (self.life.state is JobState.RUNNING)

    def teardown(self):
        """Whatever happened, the job ends."""
        if not hasattr(self, "life"):
            return
        for _ in range(2 * lease.MAX_ATTEMPTS + 1):
            self.now += timedelta(minutes=10)
            self.life = lease.expire(self.life, self.now, 0.5) or lease.claim(self.life, self.now) or self.life
        assert self.life.state in (JobState.DONE, JobState.DEAD)


TestLeases = Leases.TestCase


def test_a_job_that_is_not_due_is_not_claimed():
    life = JobLife(state=JobState.QUEUED, run_at=EPOCH)
    assert lease.claim(life, EPOCH - timedelta(microseconds=1)) is None
    assert lease.claim(life, EPOCH).state is JobState.RUNNING


def test_three_failures_bury_a_job_and_say_why():
    life = JobLife(state=JobState.QUEUED, run_at=EPOCH)
    for attempt in range(1, 4):
        life = lease.claim(life, life.run_at)
        life = lease.fail(life, life.fence, life.run_at, f"broken {attempt}", 0.0)
    assert (life.state, life.error) == (JobState.DEAD, "broken 3")
    revived = lease.revive(life, EPOCH)
    assert (revived.state, revived.attempts, revived.fence) == (JobState.QUEUED, 0, 3)


def test_only_a_dead_job_is_revived():
    assert lease.revive(JobLife(state=JobState.DONE, run_at=EPOCH), EPOCH) is None


def test_a_worker_that_slept_past_the_sweep_cannot_commit():
    first = lease.claim(JobLife(state=JobState.QUEUED, run_at=EPOCH), EPOCH)
    swept = lease.expire(first, first.expires_at, 0.0)
    second = lease.claim(swept, swept.run_at)
    with pytest.raises(LeaseLostError, match="claim 1 has ended"):
        lease.complete(second, first.fence)
    assert lease.complete(second, second.fence).state is JobState.DONE


@given(st.integers(1, 10), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_and_are_spread_over_half_their_length(attempts, jitter):
    full = timedelta(seconds=5 * 4 ** (attempts - 1))
    assert full / 2 <= lease.backoff(attempts, jitter) <= full


@given(st.integers(1, 86_400), st.integers(-86_400, 10**7))
def test_a_tick_stays_on_its_grid_and_skips_what_was_missed(interval_s, late_s):
    interval, now = timedelta(seconds=interval_s), EPOCH + timedelta(seconds=late_s)
    following = lease.next_run(EPOCH, interval, now)
    assert following > max(now, EPOCH)
    assert (following - EPOCH) % interval == timedelta(0)
    assert following - interval <= max(now, EPOCH)
