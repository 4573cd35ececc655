"""Whose connection it is, behind proxies too."""

import pytest

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.addresses import UNKNOWN, ClientAddresses, counted_as, is_loopback

PROXIES = ("10.0.0.0/8", "2001:db8:ffff::1")


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.1, 10.2.2.2", "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9", "198.51.100.1"], "198.51.100.1"),
        ("2001:db8:ffff::1", "198.51.100.1", "198.51.100.1"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "rubbish", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1:50123", "198.51.100.1"),
        ("10.0.0.1", "[2001:db8::1]:50123", "2001:db8::1"),
        ("10.0.0.1", "[2001:db8::1]", "2001:db8::1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", '"[2001:db8::1]:50123"', "2001:db8::1"),
        ("10.0.0.1", "198.51.100.1:50123, 10.2.2.2:80", "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1, unknown", "10.0.0.1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "_hidden", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1:port", "10.0.0.1"),
        ("10.0.0.1", "[2001:db8::1]x", "10.0.0.1"),
        ("10.0.0.1", "[", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2, 10.0.0.3", "10.0.0.2"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("", "198.51.100.1", UNKNOWN),
    ],
)
def test_only_what_trusted_proxies_say_is_believed(connection, peer, forwarded, found):
    assert ClientAddresses(PROXIES).of(connection(client=peer, x_forwarded_for=forwarded)) == found


def test_without_trusted_proxies_nothing_is_believed(connection):
    assert ClientAddresses().of(connection(client="10.0.0.1", x_forwarded_for="198.51.100.1")) == "10.0.0.1"


def test_a_proxy_that_is_not_trusted_is_named_once(connection, caplog):
    addresses = ClientAddresses(PROXIES)
    addresses.of(connection(client="10.0.0.1", x_forwarded_for="198.51.100.1"))
    addresses.of(connection(client="192.0.2.1"))
    assert not caplog.messages
    for _ in range(2):
        addresses.of(connection(client="192.0.2.1", x_forwarded_for="198.51.100.1"))
    (message,) = caplog.messages
    assert message.startswith("192.0.2.1 ")
    assert "security.trusted_proxies" in message


def test_a_header_that_cannot_be_used_is_named_once(connection, caplog):
    addresses = ClientAddresses(PROXIES)
    addresses.of(connection(client="10.0.0.1", x_forwarded_for="198.51.100.1:50123"))
    addresses.of(connection(client="10.0.0.1"))
    assert not caplog.messages
    for _ in range(2):
        addresses.of(connection(client="10.0.0.1", x_forwarded_for="198.51.100.1, unknown" + "x" * 500))
    (message,) = caplog.messages
    assert message.startswith("the trusted proxy 10.0.0.1 ")
    assert "unknown" in message
    assert len(message) < 300


def test_an_ipv6_network_counts_as_one():
    assert counted_as("2001:db8::1") == counted_as("2001:db8::ffff") == "2001:db8::/64"
    assert counted_as("192.0.2.1") == "192.0.2.1"
    assert counted_as(UNKNOWN) == UNKNOWN


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("[::1]", True), ("LOCALHOST", True),
     ("0.0.0.0", False),  # noqa: S104
     ("::", False), ("", False), ("192.0.2.1", False), ("localhost.example", False)],
)  # fmt: skip
def test_loopback_addresses_are_recognised(host, loopback):
    assert is_loopback(host) is loopback


def test_invalid_network_is_refused():
    with pytest.raises(GatewaySettingsError, match="trusted_proxies"):
        ClientAddresses(["proxy.example"])
