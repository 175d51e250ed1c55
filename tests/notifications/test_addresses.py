"""Where a webhook may not lead, as a table of networks and every way to write an address of one."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.notifications import addresses, endpoints

PRIVATE = [
    ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
        "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4",
        "240.0.0.0/4", "169.254.169.254/32", "100.100.100.200/32", "168.63.129.16/32", "255.255.255.255/32",
        "::/128", "::1/128", "fc00::/7", "fd00:ec2::254/128", "fe80::/10", "fec0::/10", "ff00::/8", "2001:db8::/32",
        "100::/64",
    )
]  # fmt: skip
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.215.14", "172.32.0.1", "100.128.0.1", "2606:4700:4700::1111", "2a00:1450::1"]

private_networks = st.sampled_from(PRIVATE)
private_v4 = st.sampled_from([network for network in PRIVATE if isinstance(network, IPv4Network)]).flatmap(
    lambda network: st.ip_addresses(network=network)
)
private_any = private_networks.flatmap(lambda network: st.ip_addresses(network=network))
private_v6 = st.sampled_from([network for network in PRIVATE if isinstance(network, IPv6Network)]).flatmap(
    lambda network: st.ip_addresses(network=network)
)


def wrapped(inner: IPv4Address) -> list[str]:
    """Every IPv6 address that leads to an IPv4 address: mapped, compatible, translated, 6to4, Teredo."""
    bits = int(inner)
    return [
        str(IPv6Address(prefix | shifted))
        for prefix, shifted in (
            (int(IPv6Address("::ffff:0:0")), bits),
            (0, bits),
            (int(IPv6Address("64:ff9b::")), bits),
            (int(IPv6Address("64:ff9b:1::")), bits),
            (int(IPv6Address("2002::")), bits << 80),
            (int(IPv6Address("2001::")), bits ^ 0xFFFFFFFF),
        )
    ]


def spelled(inner: IPv4Address) -> list[str]:
    """Ways to write an IPv4 address that a system's resolver reads as it."""
    first, *rest = inner.packed
    return [str(inner), str(int(inner)), hex(int(inner)), f"0{first:o}." + ".".join(map(str, rest)),
            f"{first}.{int.from_bytes(bytes(rest), 'big')}"]  # fmt: skip


def is_saved(host: str) -> bool:
    try:
        endpoints.read(f"https://{host}/hooks", allow_private=False)
    except endpoints.EndpointError:
        return False
    return True


@given(private_any)
def test_no_private_address_is_public(address):
    assert not addresses.is_public(str(address))


@given(private_v4)
def test_no_ipv6_address_that_leads_to_a_private_one_is_public(address):
    assert not any(addresses.is_public(each) for each in wrapped(address))


@given(private_v4)
def test_no_spelling_of_a_private_address_is_saved(address):
    assert not any(is_saved(each) for each in spelled(address))


@given(private_v6)
def test_no_private_ipv6_address_is_saved(address):
    assert not is_saved(f"[{address}]")


@given(st.ip_addresses())
def test_what_is_public_is_of_no_private_network(address):
    if addresses.is_public(str(address)):
        assert not any(address.version == network.version and address in network for network in PRIVATE)


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet_are_public(address):
    assert addresses.is_public(address)
    assert is_saved(f"[{address}]" if ":" in address else address)


@pytest.mark.parametrize("text", ["", "example.com", "8.8.8", "8.8.8.8/32", "fe80::1%eth0", "2606:4700::1%1"])
def test_what_is_no_whole_address_is_not_public(text):
    assert not addresses.is_public(text)
