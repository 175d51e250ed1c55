"""``POST /tokenize`` and ``/detokenize``: a replica's answer to a key that may call the model, at no charge.

A call counts as a request of its tenant and key while it runs, and as no tokens. It does not wait for a cold model, nor
wake one: what is not generated is no use of it.
"""

import structlog
from starlette.requests import Request
from starlette.responses import Response

from dataplane.contracts import headers, ids
from dataplane.contracts.errors import ApiError, Code
from dataplane.contracts.headers import PUBLIC_REQUEST_ID
from dataplane.contracts.replica import ReplicaReport
from dataplane.gateway import arm_choice, intake, limits
from dataplane.gateway.arm_choice import Choice
from dataplane.gateway.auth import Caller
from dataplane.gateway.cold_queue import Held
from dataplane.gateway.door import Door, Headers
from dataplane.gateway.intake import Bodies, Intake
from dataplane.gateway.limits import Limiter
from dataplane.gateway.replicas import Replicas
from dataplane.gateway.router import Wanted
from dataplane.gateway.settings import Settings
from dataplane.gateway.upstream import ReplicaLost, Upstream
from dataplane.http_server.asgi import read_body

PATHS = ("/tokenize", "/detokenize")
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Token ids and texts of the longest body, each a few times as long as JSON."""
_RETRY_S = 1.0
_log = structlog.get_logger("gateway")


class Tokenizing:
    """The endpoint.

    Args:
        settings: bounds of a body and of a replica's silence.
        door: who calls.
        limiter: the caller's limits of requests.
        replicas: who answers.
        bodies: what all requests of this process hold.
    """

    def __init__(self, *, settings: Settings, door: Door, limiter: Limiter, replicas: Replicas, bodies: Bodies) -> None:
        self._settings = settings
        self._door = door
        self._limiter = limiter
        self._replicas = replicas
        self._bodies = bodies

    async def answer(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            ApiError: it is refused, or no replica answers.
            ClientGone: the caller left before its body had come.
        """
        asked = Headers(request.scope)
        snapshot, caller = self._door.enter(asked)
        bounds, request_id = self._settings, ids.new_id(ids.Kind.REQUEST)
        with self._bodies.holding(caller.tenant.id) as hold:
            body = await read_body(
                request.scope, request.receive, bounds.max_body_bytes, timeout_s=bounds.body_timeout_s, hold=hold
            )
            taken = intake.parse(body)
            choice = arm_choice.of(asked, snapshot, caller, taken.model)
            scopes = limits.scopes_of(caller.tenant, caller.key)
            reservation = await self._limiter.reserve(request_id, scopes, 0)
            try:
                response = await self._ask(request.url.path, request_id, caller, choice, taken)
            finally:
                await self._limiter.settle(reservation, 0)
        response.headers[PUBLIC_REQUEST_ID] = request_id
        _log.info(
            "tokenized", request_id=request_id, tenant_id=caller.tenant.id, status=response.status_code, bytes=len(body)
        )
        return response

    async def _ask(self, path: str, request_id: str, caller: Caller, choice: Choice, taken: Intake) -> Response:
        replica = self._replica(choice, taken)
        told = [
            (headers.REQUEST_ID, request_id),
            (headers.TENANT, caller.tenant.id),
            (headers.DEPLOYMENT, replica.deployment_id),
            (headers.VERSION, replica.version_id),
        ]
        try:
            upstream = await Upstream.open(replica.socket, path, told, taken.body, self._settings.silent_replica_s)
            try:
                answer = await upstream.read_all(_MAX_ANSWER_BYTES)
            finally:
                upstream.close()
        except ReplicaLost as lost:
            self._replicas.suspect(replica)
            raise ApiError(Code.REPLICA_LOST, "The replica that was asked was lost. Try again.") from lost
        return Response(answer, upstream.status, media_type="application/json")

    def _replica(self, choice: Choice, taken: Intake) -> ReplicaReport:
        """Return a READY replica of the arm, or of the stable one where it has none."""
        deployment = choice.deployment
        for arm in (choice.arm, choice.fallback):
            if arm is None:
                continue
            wanted = Wanted(
                deployment_id=deployment.id,
                version_id=arm.version_id,
                tokens=0,
                prompt_tokens=taken.prompt_tokens,
                max_num_seqs=deployment.engine.max_num_seqs,
            )
            found = self._replicas.find(wanted, (), paced=False)
            if not isinstance(found, Held):
                return found
        raise ApiError(
            Code.MODEL_COLD,
            f"No replica of '{deployment.name}' can answer now, and this call starts none. Try again later.",
            retry_after_s=_RETRY_S,
        )
