"""What the gateways' limits have written into Redis."""

import redis

from dataplane.contracts.catalog import Limits
from dataplane.gateway import limits
from dataplane.gateway.windows import Kind, Scope


def counted(redis_url: str, tenant_id: str) -> dict[Kind, int]:
    """What Redis holds of a tenant."""
    scope = Scope("tenant", tenant_id, tenant_id, Limits())
    with redis.Redis.from_url(redis_url) as client:
        return {
            Kind.REQUESTS: sum(map(int, client.hvals(limits._key(scope, Kind.REQUESTS)))),
            Kind.TOKENS: sum(map(int, client.hvals(limits._key(scope, Kind.TOKENS)))),
            Kind.CONCURRENT: client.zcard(limits._key(scope, Kind.CONCURRENT)),
        }
