"""The door of the data plane: OpenAI's HTTP API, keys, limits, routing, streaming pass-through, usage.

Life of a request: :mod:`~dataplane.gateway.app` mints its id, :mod:`~dataplane.gateway.auth` finds the caller in the
catalog, :mod:`~dataplane.gateway.intake` reads what is needed of the body, :mod:`~dataplane.gateway.arm_choice` says
which arm it goes to, :mod:`~dataplane.gateway.limits` reserves, :mod:`~dataplane.gateway.waiting_room` seats it at a
replica that :mod:`~dataplane.gateway.router` picks, :mod:`~dataplane.gateway.proxy` relays, and the exchange is closed:
limits settled, one usage record per attempt spooled, one log line written.

No Django, no torch, no database: what a request needs is in memory or one round trip to Redis away, and Redis may be
away too.
"""
