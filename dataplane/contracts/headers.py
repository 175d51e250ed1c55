"""HTTP headers of the trusted door between gateway and replica. Anywhere else they are ignored and never forwarded."""

TENANT = "x-pagoda-tenant"
KEY = "x-pagoda-key"
REQUEST_ID = "x-pagoda-request-id"
ATTEMPT = "x-pagoda-attempt"
DEPLOYMENT = "x-pagoda-deployment"
VERSION = "x-pagoda-version"
ARM = "x-pagoda-arm"
FORCED = "x-pagoda-forced"
"""``1``: the caller chose the arm or the version; its usage records say so."""
METER = "x-pagoda-meter"
"""``1``: a comment line ``: t=<completion tokens so far>`` precedes each stream event, for the gateway to strip.

Two more fields may follow, each after a space: ``p=<prompt tokens>`` and ``c=<cached tokens>``. With them the gateway
settles the token limit by the replica's count even where the caller asked for no usage."""
QUEUE_WAIT_S = "x-pagoda-queue-wait-s"
"""Seconds that a request may wait for its first token in a replica. A gateway takes it from callers, and always tells
one to the replica."""
PACE_MS = "x-pagoda-pace-ms"
"""Milliseconds between two tokens of an answer, whatever the batch does. A gateway tells what the grant says."""
PROBE = "x-pagoda-probe"
"""``1``: a made-up tenant looks whether it can see another. Nobody pays for it, no figure counts it, and it is given up
when the replica has work to do."""

INTERNAL = frozenset({
    TENANT, KEY, REQUEST_ID, ATTEMPT, DEPLOYMENT, VERSION, ARM, FORCED, METER, QUEUE_WAIT_S, PACE_MS, PROBE,
})  # fmt: skip
PUBLIC_REQUEST_ID = "x-request-id"
SESSION = "x-pagoda-session"
"""A caller's word for a conversation: requests that share it land on the same arm of a deployment."""
USE_ARM = "x-pagoda-use-arm"
"""``stable`` or ``candidate``: a tester's call goes to that arm whatever the weights, and no verdict counts it."""
CLIENT_LABEL = "x-client-request-id"
"""A caller's own id: a label that is logged beside ours, never used as an id."""
COLD_WAIT_S = "x-pagoda-cold-wait-s"
"""Seconds that a request may wait for a replica of a model that sleeps, instead of the deployment's wait."""
COLD_HEARTBEAT = "x-pagoda-cold-heartbeat"
"""``1``: a stream that waits for a replica begins at once and is kept alive by comments, so its refusal is an event."""
