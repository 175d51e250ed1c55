"""Which addresses a webhook may be delivered to: those of the public internet, and nothing that only looks like it.

Source of the ranges: the IANA special-purpose address registries (RFC 6890 and its updates). Python's ``is_global``
knows most of them; what it knows differs between its versions, so what matters here is written down besides.
"""

import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

_V6_GLOBAL_UNICAST = ip_network("2000::/3")
_REFUSED = [
    ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # metadata of a cloud, on an address that is public elsewhere
        "2001::/23", "2001:db8::/32", "3fff::/20",
        "2002::/16",  # carries an IPv4 address, as do the mapped and translated ones, which are not 2000::/3
    )
]  # fmt: skip
_LOCAL_NAMES = ("localhost", "local", "internal", "intranet", "lan", "home.arpa")
"""Ends of names that no public name has."""


def is_public(address: str) -> bool:
    """Say whether the whole internet can mean this host by ``address``."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    if not parsed.is_global or parsed.is_multicast or getattr(parsed, "scope_id", None):
        return False
    if isinstance(parsed, IPv6Address) and parsed not in _V6_GLOBAL_UNICAST:
        return False
    return not any(parsed.version == network.version and parsed in network for network in _REFUSED)


def literal(host: str) -> str | None:
    """Return the address that ``host`` is, in its usual form; None where it is a name.

    ``0x7f.1`` and ``2130706433`` are addresses too: the system's resolver reads them as 127.0.0.1.
    """
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        return str(IPv4Address(socket.inet_aton(host)))
    except (OSError, ValueError):
        return None


def is_local_name(host: str) -> bool:
    """Say whether ``host`` is a name that only means something within a network: one word, or under a local end."""
    name = host.rstrip(".").lower()
    return "." not in name or name.endswith(tuple(f".{end}" for end in _LOCAL_NAMES))


def private_ones(addresses: Collection[str]) -> list[str]:
    """Return those of ``addresses`` that are not public."""
    return [address for address in addresses if not is_public(address)]
