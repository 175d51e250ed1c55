"""The Lua script against its pure model: same verdicts, same waits, same gauges, for any history."""

import secrets

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dataplane.contracts.catalog import Limits
from dataplane.gateway import limits
from dataplane.gateway.windows import Kind, LocalLimits, Scope
from stack.redis import Redis

maybe = st.none() | st.integers(0, 12)
FOREVER_MS = 10**10


class ScriptMachine(RuleBasedStateMachine):
    """Runs every operation on Redis and on the model, at a time of the test's choosing."""

    client: redis.Redis

    @initialize(
        limits_=st.lists(st.tuples(maybe, maybe, maybe), min_size=1, max_size=2), start_ms=st.integers(0, 10**13)
    )
    def begin(self, limits_: list[tuple[int | None, ...]], start_ms: int) -> None:
        run = secrets.token_hex(8)
        self.scopes = tuple(
            Scope(name, f"{name}_{run}", run, Limits(*values))
            for name, values in zip(("tenant", "key"), limits_, strict=False)
        )
        self.script = self.client.register_script(limits._SCRIPT)
        self.model = LocalLimits()
        self.now_ms = start_ms
        self.running: list[tuple[str, int, int]] = []

    @rule(gap_ms=st.sampled_from([0, 1, 499, 500, 3_000, 59_500, 60_000, 60_500, 200_000]) | st.integers(0, 90_000))
    def time_passes(self, gap_ms: int) -> None:
        self.now_ms += gap_ms

    @rule(tokens=st.integers(1, 9))
    def reserve(self, tokens: int) -> None:
        request_id = secrets.token_hex(4)
        keys = [limits._key(scope, kind) for scope in self.scopes for kind in Kind]
        args: list[object] = ["reserve", self.now_ms, request_id, tokens, FOREVER_MS]
        for scope in self.scopes:
            args += [-1 if (limit := scope.limit(kind)) is None else limit for kind in Kind] + [0, 0, 0]
        admitted, bucket, refusing, wait_ms, *figures = self.script(keys=keys, args=args)
        expected = self.model.reserve(self.scopes, request_id, tokens, self.now_ms)
        rows = [(scope, kind) for scope in self.scopes for kind in Kind]
        told = [
            (scope.name, kind, used, reset_ms)
            for (scope, kind), used, reset_ms in zip(rows, figures[0::2], figures[1::2], strict=True)
            if scope.limit(kind) is not None
        ]
        assert told == [(g.scope, g.kind, g.used, g.reset_ms) for g in expected.gauges]
        if expected.refused is None:
            assert (admitted, refusing, wait_ms) == (1, -1, 0)
            self.running.append((request_id, bucket, tokens))
        else:
            assert (admitted, wait_ms) == (0, expected.retry_ms)
            assert (rows[refusing][0].name, rows[refusing][1]) == (expected.refused.scope, expected.refused.kind)

    @rule(which=st.integers(0, 100), used=st.integers(0, 12))
    def settle(self, which: int, used: int) -> None:
        if not self.running:
            return
        request_id, bucket, tokens = self.running.pop(which % len(self.running))
        windows = [limits._key(s, Kind.TOKENS) for s in self.scopes if s.limit(Kind.TOKENS) is not None]
        slots = [limits._key(s, Kind.CONCURRENT) for s in self.scopes if s.limit(Kind.CONCURRENT) is not None]
        if windows or slots:
            args = ["settle", self.now_ms, request_id, bucket, used - tokens, len(windows)]
            self.script(keys=windows + slots, args=args)
        self.model.settle(self.scopes, request_id, bucket, used - tokens, self.now_ms)


@pytest.fixture
def client(redis_server: Redis):
    with redis.Redis.from_url(redis_server.url) as connection:
        yield connection


def test_the_script_and_the_model_agree_on_every_history(client: redis.Redis) -> None:
    machine = type("Bound", (ScriptMachine,), {"client": client})
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None))


@given(known=st.integers(0, 9), limit=st.integers(0, 9))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_gateway_knows_counts_even_where_redis_has_forgotten_it(
    client: redis.Redis, known: int, limit: int
) -> None:
    run = secrets.token_hex(8)
    scope = Scope("tenant", run, run, Limits(concurrent_requests=limit))
    keys = [limits._key(scope, kind) for kind in Kind]
    args = ["reserve", 1_000, "r", 1, FOREVER_MS, -1, -1, limit, 0, 0, known]
    admitted, *_ = client.register_script(limits._SCRIPT)(keys=keys, args=args)
    assert bool(admitted) == (known < limit)


def test_a_lease_that_nobody_renews_ends(client: redis.Redis) -> None:
    run = secrets.token_hex(8)
    keys = [limits._key(Scope("tenant", run, run, Limits()), kind) for kind in Kind]
    script = client.register_script(limits._SCRIPT)

    def reserve(request_id: str, now_ms: int) -> bool:
        return script(keys=keys, args=["reserve", now_ms, request_id, 1, 10_000, -1, -1, 1, 0, 0, 0])[0] == 1

    assert reserve("r1", 0)
    assert not reserve("r2", 9_000)
    script(keys=keys[2:], args=["hold", 9_000, 10_000, "r1"])
    assert not reserve("r2", 18_000)
    assert reserve("r2", 19_000)


def test_keys_of_a_tenant_that_went_away_do_not_stay_in_redis(client: redis.Redis) -> None:
    run = secrets.token_hex(8)
    keys = [limits._key(Scope("tenant", run, run, Limits()), kind) for kind in Kind]
    args = ["reserve", "", "r1", 5, 10_000, 100, 100, 100, 0, 0, 0]
    client.register_script(limits._SCRIPT)(keys=keys, args=args)
    assert all(0 < client.pttl(key) <= 62_000 for key in keys)
