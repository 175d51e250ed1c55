"""The address of a webhook: read once, by the reader that also sends to it, so that nobody reads it differently.

What can be told without asking anybody is refused when a webhook is saved: the form, addresses, names of local
networks. What a name means is asked when something is sent to it, each time: a name that is public today may be
10.0.0.1 tomorrow, and a service waits for no stranger's name server.
"""

import re
from dataclasses import dataclass

import httpx

from controlplane.notifications import addresses
from controlplane.notifications.models import URL_MAX_CHARS

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?", re.ASCII)
_PORTS = {"https": 443, "http": 80}


class EndpointError(ValueError):
    """The text is no address that a webhook may have; the message says why, and what to write."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a message goes.

    Args:
        url: the whole address.
        host: the name or address in it, in ASCII.
        port: the TCP port.
    """

    url: httpx.URL
    host: str
    port: int

    @property
    def host_header(self) -> str:
        """What the receiver is called in the request: its name, with the port where that is not the usual one."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _PORTS[self.url.scheme] else f"{name}:{self.port}"

    def at(self, address: str) -> httpx.URL:
        """Return the address to connect to: the same, with the host's checked IP address in place of its name."""
        return self.url.copy_with(host=address)


def read(text: str, *, allow_private: bool) -> Endpoint:
    """Return the endpoint that ``text`` is.

    Args:
        text: a URL.
        allow_private: whether plain HTTP and addresses that are not public are taken.

    Raises:
        EndpointError: it is none, or not one that may be sent to.
    """
    if len(text) > URL_MAX_CHARS:
        raise EndpointError(f"A URL has at most {URL_MAX_CHARS:,} characters.")
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise EndpointError("This is not a URL. Write one such as https://example.com/hooks.") from error
    if url.scheme != "https" and not (allow_private and url.scheme == "http"):
        raise EndpointError("Write a URL that begins with https://.")
    if url.userinfo or url.fragment:
        raise EndpointError("Leave out what stands before an @ or after a #; messages are signed instead.")
    host = url.raw_host.decode("ascii")
    if not _is_host(host):
        raise EndpointError("The URL names no host. Write one such as https://example.com/hooks.")
    port = _PORTS[url.scheme] if url.port is None else url.port
    if not 0 < port < 65536:
        raise EndpointError("A port is a number from 1 to 65535.")
    if not allow_private:
        _require_public(host)
    return Endpoint(url=url, host=host, port=port)


def _is_host(host: str) -> bool:
    return addresses.literal(host) is not None or _NAME.fullmatch(host) is not None


def _require_public(host: str) -> None:
    address = addresses.literal(host)
    if address is not None and not addresses.is_public(address):
        raise EndpointError(f"{address} is not an address of the public internet.")
    if address is None and addresses.is_local_name(host):
        raise EndpointError(f"{host} is a name of a local network. Use one that the public internet knows.")
