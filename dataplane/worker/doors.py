"""Who is calling: internal headers count on the Unix socket, or where the operator said so, and nowhere else."""

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

import msgspec

from dataplane.contracts import headers, ids, probes
from dataplane.contracts.errors import ApiError, Code

DEFAULT_TENANT = "default"
"""Whose requests those are that come without a tenant."""
_NAME = re.compile(r"^[A-Za-z0-9_.:-]{1,128}$")
_SECONDS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,3})?", re.ASCII)
_PACE_MS = re.compile(r"[0-9]{1,4}", re.ASCII)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A request's origin as its door vouches for it.

    ``billed``: a gateway sent it for a tenant, so its usage goes to the spool. ``metered``: its stream carries counts.
    ``queue_wait_s``: how long it may wait for its first token; None is as long as this worker lets everybody.
    ``pace_s``: the time between two tokens of its answer; 0 sends them as they come. ``probe``: nobody is behind it.
    """

    request_id: str
    trusted: bool = False
    attempt: int = 1
    tenant_id: str = DEFAULT_TENANT
    key_id: str = ""
    deployment_id: str = ""
    version_id: str = ""
    arm: str = "stable"
    forced: bool = False
    billed: bool = False
    metered: bool = False
    queue_wait_s: float | None = None
    pace_s: float = 0.0
    probe: bool = False

    @property
    def sequence_id(self) -> str:
        """The engine's name for this attempt."""
        return f"{self.request_id}.{self.attempt}"


def is_trusted(scope: MutableMapping[str, Any], trust_header: bool) -> bool:
    """Say whether the connection of an ASGI ``scope`` may name tenants.

    The server itself says which of its sockets a connection came in by: a Unix socket has a path and no port.
    """
    server = scope.get("server")
    return trust_header or (server is not None and server[1] is None)


def read_caller(scope: MutableMapping[str, Any], trust_header: bool) -> Caller:
    """Return the caller of a request.

    Raises:
        ApiError: an internal header, at a trusted door, that is given twice or is not of its form.
    """
    if not is_trusted(scope, trust_header):
        return Caller(request_id=ids.new_id(ids.Kind.REQUEST))
    found = _internal_headers(scope)
    request_id = found.get(headers.REQUEST_ID)
    if request_id is not None and not ids.is_id(request_id, ids.Kind.REQUEST):
        raise _bad(headers.REQUEST_ID)
    attempt = found.get(headers.ATTEMPT, "1")
    if not (attempt.isascii() and attempt.isdecimal() and len(attempt) <= 4):
        raise _bad(headers.ATTEMPT)
    queue_wait_s = _number(found, headers.QUEUE_WAIT_S, _SECONDS)
    tenant_id, probe = found.get(headers.TENANT, DEFAULT_TENANT), found.get(headers.PROBE) == "1"
    if probe is not (tenant_id in probes.TENANTS):
        raise _bad(headers.PROBE)
    return Caller(
        request_id=request_id or ids.new_id(ids.Kind.REQUEST),
        trusted=True,
        attempt=int(attempt),
        tenant_id=tenant_id,
        key_id=found.get(headers.KEY, ""),
        deployment_id=found.get(headers.DEPLOYMENT, ""),
        version_id=found.get(headers.VERSION, ""),
        arm=found.get(headers.ARM, "stable"),
        forced=found.get(headers.FORCED) == "1",
        billed=request_id is not None and headers.TENANT in found and not probe,
        metered=found.get(headers.METER) == "1",
        queue_wait_s=queue_wait_s,
        pace_s=(_number(found, headers.PACE_MS, _PACE_MS) or 0) / 1000,
        probe=probe,
    )


def _internal_headers(scope: MutableMapping[str, Any]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        if name not in headers.INTERNAL:
            continue
        value = raw_value.decode("latin-1")
        if name in found or _NAME.match(value) is None:
            raise _bad(name)
        found[name] = value
    return found


def _number(found: Mapping[str, str], name: str, form: re.Pattern[str]) -> float | None:
    text = found.get(name)
    if text is not None and form.fullmatch(text) is None:
        raise _bad(name)
    return None if text is None else float(text)


def _bad(name: str) -> ApiError:
    return ApiError(Code.INVALID_REQUEST, f"the header {name} is given twice or is not of the form it has")
