"""From a replica to the caller: attempts, re-dispatch before the first byte, pass-through with bounded buffers."""

import time

import msgspec
import structlog

from dataplane.contracts import headers
from dataplane.contracts.errors import ApiError, Code, ErrorBody, ErrorEnvelope
from dataplane.contracts.replica import ReplicaReport
from dataplane.contracts.usage import Outcome
from dataplane.gateway import router
from dataplane.gateway.exchange import Attempt, Exchange
from dataplane.gateway.rate_headers import Header
from dataplane.gateway.replicas import Replicas
from dataplane.gateway.reply import Reply
from dataplane.gateway.router import Incarnation
from dataplane.gateway.sse import End, EventStream, Release, read_answer
from dataplane.gateway.upstream import ReplicaLost, Upstream
from dataplane.gateway.waiting_room import WaitingRoom

SERVED_VERSION = b"x-served-version"
SERVED_REPLICA = b"x-served-replica"
_MAX_ANSWER_BYTES = 16 * 1024 * 1024
_MAX_ERROR_BYTES = 64 * 1024
_ATTEMPTS = 2
_OK = 200
_ELSEWHERE = frozenset({Code.SHUTTING_DOWN.code, Code.MODEL_COLD.code, Code.REPLICA_LOST.code})
"""What a replica says when it cannot take the request but another can: the table was a moment behind, or its engine
has just died."""
_PASSED_ON = frozenset({b"content-type", b"retry-after", b"retry-after-ms"})
_log = structlog.get_logger(__name__)


class Proxy:
    """Relays accepted requests.

    Args:
        replicas: who may take them.
        room: where they get there.
        silence_s: how long a replica may say nothing.
        queue_wait_s: how long a request may wait for its first token in a replica, where its caller does not say.
    """

    def __init__(self, replicas: Replicas, room: WaitingRoom, silence_s: float, queue_wait_s: float) -> None:
        self._replicas = replicas
        self._room = room
        self._silence_s = silence_s
        self._queue_wait_s = queue_wait_s

    async def serve(self, exchange: Exchange, reply: Reply) -> None:
        """Answer ``exchange``, on a second replica when the first breaks before the caller was sent a byte.

        Raises:
            ApiError: no replica, or the last one broke.
            ClientStalled: the caller stopped reading.
        """
        avoid: set[Incarnation] = set()
        while not await self._attempt(exchange, reply, avoid):
            pass

    async def _attempt(self, exchange: Exchange, reply: Reply, avoid: set[Incarnation]) -> bool:
        """Try once; False when another replica is to be tried."""
        beat = reply.heartbeat if exchange.patience.heartbeats else None
        with exchange.attempt() as attempt:
            async with self._room.seat(exchange, avoid, beat) as replica:
                attempt.replica, attempt.found_s = replica, time.monotonic()
                try:
                    await self._relay(exchange, attempt, replica.socket, reply)
                except ReplicaLost as lost:
                    self._lost(exchange, replica, lost)
                    if reply.answered or attempt.number == _ATTEMPTS:
                        raise ApiError(
                            Code.REPLICA_LOST, "The replica that served this request was lost. Try again."
                        ) from lost
                    avoid.add(router.incarnation(replica))
                    attempt.outcome, attempt.error_code = Outcome.REDISPATCHED, lost.code
                    return False
        return True

    def _lost(self, exchange: Exchange, replica: ReplicaReport, lost: ReplicaLost) -> None:
        self._replicas.suspect(replica)
        _log.warning("replica_lost", request_id=exchange.request_id, replica_id=replica.replica_id, reason=str(lost))

    async def _relay(self, exchange: Exchange, attempt: Attempt, socket: str, reply: Reply) -> None:
        told = self._trusted_headers(exchange, attempt)
        silence_s = self._silence_s
        if not exchange.intake.stream:  # a paced answer says nothing before its last tick
            silence_s += exchange.wanted.tokens * exchange.pace_ms / 1000
        upstream = await Upstream.open(socket, exchange.endpoint, told, exchange.intake.body, silence_s)
        try:
            if upstream.status != _OK:
                await self._relay_error(exchange, attempt, upstream, reply)
            elif exchange.intake.stream:
                await self._relay_stream(exchange, attempt, upstream, reply)
            else:
                await self._relay_whole(exchange, attempt, upstream, reply)
        finally:
            upstream.close()

    def _trusted_headers(self, exchange: Exchange, attempt: Attempt) -> list[tuple[str, str]]:
        """Return all that a replica is told beside the body. No text of the caller's headers is ever among it."""
        asked_s = exchange.patience.queue_wait_s
        told = [
            (headers.REQUEST_ID, exchange.request_id),
            (headers.ATTEMPT, str(attempt.number)),
            (headers.TENANT, exchange.caller.tenant.id),
            (headers.KEY, exchange.caller.key.id),
            (headers.DEPLOYMENT, exchange.deployment.id),
            (headers.VERSION, exchange.arm.version_id),
            (headers.ARM, exchange.arm.name),
            (headers.METER, "1"),
            (headers.QUEUE_WAIT_S, f"{self._queue_wait_s if asked_s is None else asked_s:.3f}"),
            (headers.PACE_MS, str(exchange.pace_ms)),
        ]
        return [*told, (headers.FORCED, "1")] if exchange.forced else told

    async def _relay_stream(self, exchange: Exchange, attempt: Attempt, upstream: Upstream, reply: Reply) -> None:
        events = EventStream(exchange.intake.n)
        attempt.tally = events.tally
        while events.end in (End.OPEN, End.HELD):
            piece = await upstream.read()
            if not piece:
                raise ReplicaLost("the stream ended without [DONE] or an error")
            release = events.feed(piece)
            if release is not None:
                await self._pass_on(exchange, attempt, events, release, reply)
            if events.fault:
                raise ReplicaLost(events.fault)
        attempt.finished()

    async def _pass_on(
        self, exchange: Exchange, attempt: Attempt, events: EventStream, release: Release, reply: Reply
    ) -> None:
        if events.tally.error is not None and not reply.answered and not release.completion_tokens:
            raise _as_status(events.tally.error)
        if attempt.first_token_s is None:
            attempt.first_token_s = time.monotonic()
        last = events.end in (End.DONE, End.FAILED)
        if last:
            # Before the last byte: a caller that sends its next request right after it finds its slot free.
            await exchange.settle()
        if not reply.started:
            reply.headers += _served_headers(exchange, attempt)
        await reply.stream(release.data, last=last)
        attempt.delivered_tokens = release.completion_tokens

    async def _relay_whole(self, exchange: Exchange, attempt: Attempt, upstream: Upstream, reply: Reply) -> None:
        body = await upstream.read_all(_MAX_ANSWER_BYTES)
        attempt.tally = read_answer(body)
        await exchange.settle()
        reply.headers += _served_headers(exchange, attempt)
        await reply.whole(_OK, body)
        attempt.delivered_tokens = attempt.tally.completion_tokens
        attempt.finished()

    async def _relay_error(self, exchange: Exchange, attempt: Attempt, upstream: Upstream, reply: Reply) -> None:
        body = await upstream.read_all(_MAX_ERROR_BYTES)
        try:
            code = msgspec.json.decode(body, type=ErrorEnvelope).error.code
        except msgspec.DecodeError as error:
            raise ReplicaLost(f"answered {upstream.status} without an error envelope") from error
        if code in _ELSEWHERE:
            raise ReplicaLost(f"answered {code}", code)
        refused = upstream.status < 500 or upstream.status == Code.OVERLOADED.status
        attempt.outcome, attempt.error_code = (Outcome.REFUSED if refused else Outcome.FAILED), code
        await exchange.settle()
        await reply.refusal(
            upstream.status, body, [(name, value) for name, value in upstream.headers.items() if name in _PASSED_ON]
        )


def _as_status(error: ErrorBody) -> ApiError:
    """Return the error of a stream that failed before it began: its caller can still have a plain status."""
    return ApiError(Code.named(error.code, Code.INTERNAL), error.message, param=error.param)


def _served_headers(exchange: Exchange, attempt: Attempt) -> list[Header]:
    replica_id = attempt.replica.replica_id if attempt.replica else ""
    return [(SERVED_VERSION, exchange.arm.version_id.encode()), (SERVED_REPLICA, replica_id.encode())]
