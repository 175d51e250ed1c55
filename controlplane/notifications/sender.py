"""Sends one message over HTTP: bounded in time and bytes, to an address that was checked, and to no other.

A name is resolved once and the connection goes to what was found, with the name in ``Host``, in TLS's SNI and in the
certificate's check: between the check and the connection there is no second answer to give (DNS rebinding). Redirects
are not followed, proxies of the environment not used. Of the answer only its head is read, which is bounded.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import httpx

from controlplane.notifications import addresses
from controlplane.notifications.endpoints import Endpoint
from controlplane.notifications.schedule import MOST_AT_ONCE, Outcome, answered

DEADLINE_S = 10.0
"""For one attempt: the name, the connection, and the head of the answer."""
_MAX_ADDRESSES = 3

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host, in the order to try them in."""

_resolvers = ThreadPoolExecutor(2 * MOST_AT_ONCE, thread_name_prefix="webhook-names")
"""Name servers of strangers answer when they like; those that keep a thread waiting are not waited for."""


class _Refused(Exception):
    """The name does not lead to a place that may be sent to."""


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system for the addresses of ``host``.

    Raises:
        OSError: there are none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(
        _resolvers, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    )
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@cache
def trusted() -> ssl.SSLContext:
    """Return the authorities that receivers' certificates are checked by."""
    return httpx.create_ssl_context(trust_env=False)


async def post(
    endpoint: Endpoint,
    headers: Mapping[str, str],
    body: bytes,
    *,
    allow_private: bool,
    resolve: Resolve = resolve,
    tls: ssl.SSLContext | None = None,
    deadline_s: float = DEADLINE_S,
) -> Outcome:
    """Make one attempt and say what came of it; it raises nothing that the receiver or its name could cause.

    Args:
        endpoint: where to.
        headers: besides ``Host`` and what HTTP needs.
        body: JSON.
        allow_private: whether addresses that are not public are taken.
        resolve: asks for a name's addresses.
        tls: how certificates are checked.
        deadline_s: for all of it.
    """
    try:
        async with asyncio.timeout(deadline_s):
            found = await _checked(endpoint, resolve, allow_private=allow_private)
            return answered(await _status(endpoint, found, headers, body, tls or trusted()))
    except TimeoutError:
        return Outcome(False, error=f"It did not answer within {deadline_s:g} s.")
    except _Refused as refusal:
        return Outcome(False, error=str(refusal))
    except httpx.HTTPError as error:
        return Outcome(False, error=_said(error))


async def _checked(endpoint: Endpoint, resolve: Resolve, *, allow_private: bool) -> list[str]:
    try:
        found = await resolve(endpoint.host, endpoint.port)
    except (OSError, UnicodeError) as error:
        raise _Refused(f"The name {endpoint.host} has no address.") from error
    # One that is not public is enough: which of them a connection would get is the name server's choice.
    private = [] if allow_private else addresses.private_ones(found)
    if private:
        raise _Refused(f"The name {endpoint.host} leads to {private[0]}, which is no address of the public internet.")
    return found[:_MAX_ADDRESSES]


async def _status(
    endpoint: Endpoint, found: list[str], headers: Mapping[str, str], body: bytes, tls: ssl.SSLContext
) -> int:
    sent = {**headers, "host": endpoint.host_header}
    # A client of its own: one that is shared keeps connections by address, and would use one for another name.
    async with httpx.AsyncClient(verify=tls, trust_env=False, follow_redirects=False, timeout=DEADLINE_S) as client:
        for address in found:
            request = client.build_request(
                "POST", endpoint.at(address), headers=sent, content=body, extensions={"sni_hostname": endpoint.host}
            )
            try:
                answer = await client.send(request, stream=True)
            except httpx.ConnectError:
                if address == found[-1]:
                    raise
                continue
            await answer.aclose()
            return answer.status_code
    raise _Refused(f"The name {endpoint.host} has no address.")


def _said(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.ConnectError):
        if isinstance(_cause(error), ssl.SSLError):
            return f"No secure connection could be made: {error}."
        return "No connection could be made."
    return "The connection broke, or what came back is not HTTP."


def _cause(error: BaseException) -> BaseException:
    """Return what an error was made of, however often it was wrapped."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]  # one of them is set
    return error
