"""The URL of a webhook is read once and strictly."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.notifications.endpoints import EndpointError, read


@pytest.mark.parametrize(
    ("text", "host", "header"),
    [
        ("https://example.com/hooks?a=1", "example.com", "example.com"),
        ("https://example.com:443/", "example.com", "example.com"),
        ("https://example.com:8443", "example.com", "example.com:8443"),
        ("https://exämple.com/", "xn--exmple-cua.com", "xn--exmple-cua.com"),
        ("https://EXAMPLE.com./", "example.com.", "example.com."),
        ("https://[2606:4700::1]:444/", "2606:4700::1", "[2606:4700::1]:444"),
    ],
)
def test_a_public_url_is_taken(text, host, header):
    endpoint = read(text, allow_private=False)
    assert (endpoint.host, endpoint.host_header) == (host, header)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "begins with https"),
        ("example.com/hooks", "begins with https"),
        ("http://example.com/", "begins with https"),
        ("ftp://example.com/", "begins with https"),
        ("https:///hooks", "names no host"),
        ("https://exa mple.com/", "names no host"),
        ("https://ex%61mple.com/", "names no host"),
        ("https://example.com\\@evil.com/", "before an @"),
        ("https://alice:pw@example.com/", "before an @"),
        ("https://example.com/#part", "after a #"),
        ("https://example.com:0/", "port"),
        ("https://example.com:99999/", "port"),
        ("https://example.com/\n", "not a URL"),
        ("https://１２７.0.0.1/", "not a URL"),
        ("https://" + "a" * 1_000 + ".com/", "at most 1,000"),
        ("https://localhost/", "local network"),
        ("https://LOCALHOST./", "local network"),
        ("https://app.localhost/", "local network"),
        ("https://printer/", "local network"),
        ("https://metadata.google.internal/", "local network"),
        ("https://db.corp.local/", "local network"),
        ("https://127.1/", "127.0.0.1 is not an address of the public internet"),
        ("https://[::1]/", "not an address of the public internet"),
        ("https://[fe80::1%25eth0]/", "not an address of the public internet"),
    ],
)
def test_what_is_not_is_refused_with_the_reason(text, fault):
    with pytest.raises(EndpointError, match=fault):
        read(text, allow_private=False)


@pytest.mark.parametrize("text", ["http://127.0.0.1:8080/", "http://localhost/", "https://10.1.2.3/", "https://db/"])
def test_a_machine_of_ones_own_may_be_sent_to_where_that_is_allowed(text):
    assert read(text, allow_private=True)
    with pytest.raises(EndpointError):
        read(text, allow_private=False)


@given(st.text(max_size=60) | st.from_regex(r"https?://[^/]{0,30}/.{0,10}", fullmatch=True))
def test_whatever_is_typed_is_taken_or_refused_and_what_is_taken_names_its_host(text):
    try:
        endpoint = read(text, allow_private=False)
    except EndpointError:
        return
    assert endpoint.url == httpx.URL(text)
    assert endpoint.url.raw_host.decode() == endpoint.host
    assert endpoint.at("1.1.1.1").host == "1.1.1.1"
