"""Which addresses tools may connect to, and how they get there."""

from __future__ import annotations

import asyncio
import gzip
import socket

import httpx2
import pytest
from local_http import LocalHttp, local_http, response

from parley.tools.addresses import GuardedTransport, is_public, make_client

PUBLIC = ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]
NOT_PUBLIC = [
    *("127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1", "0.0.0.0"),  # noqa: S104 - refused
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00::1", "ff0e::1", "::ffff:127.0.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b:1::808:808", "2002:7f00:1::", "2001:db8::1", "2001::1"),
    *("::7f00:1", "fec0::1", "5f00::1", "3fff::1", "100::1", "4000::1", "nonsense"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_known(address):
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_no_other_address_is_public(address):
    assert not is_public(address)


def client(host, max_bytes=None):
    return make_client(GuardedTransport([], [host], max_bytes), timeout=httpx2.Timeout(None))


def answer_lookups(monkeypatch, *addresses):
    """Let every name have these addresses; returns the names that are asked for."""
    asked = []

    def getaddrinfo(host, *args, **kwargs):
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr("parley.tools.addresses.socket.getaddrinfo", getaddrinfo)
    return asked


async def test_a_host_in_punycode_is_reached(monkeypatch):
    asked = answer_lookups(monkeypatch, "127.0.0.1")
    name = "xn--bcher-kva.example"
    async with local_http() as http, client(name) as sender:
        assert (await sender.get(f"http://{name}:{http.port}/")).is_success
        assert http.received[0].headers["host"] == f"{name}:{http.port}"
    assert name in asked


async def test_an_address_of_ipv6_is_reached():
    http = LocalHttp()
    try:
        server = await asyncio.start_server(http.serve, "::1", 0)
    except OSError:
        pytest.skip("needs IPv6")
    port = server.sockets[0].getsockname()[1]
    async with server, client("::1") as sender:
        assert (await sender.get(f"http://[::1]:{port}/")).is_success
    assert http.received[0].headers["host"] == f"[::1]:{port}"


async def test_an_address_that_does_not_answer_is_passed_over(monkeypatch):
    monkeypatch.setattr("parley.tools.addresses._FIRST_CONNECT_S", 0.2)
    answer_lookups(monkeypatch, "127.0.0.2", "127.0.0.1")
    async with local_http() as http:
        # The queue is full: further connections get no answer.
        with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
            silent.bind(("127.0.0.2", http.port))
            silent.listen(0)
            for waiting in (first, second):
                waiting.setblocking(False)
                waiting.connect_ex(("127.0.0.2", http.port))
            async with client("two.example") as sender, asyncio.timeout(5):
                assert (await sender.get(f"http://two.example:{http.port}/")).is_success


async def test_a_packed_answer_is_refused_whatever_its_size():
    async with local_http() as http, client("127.0.0.1", max_bytes=100_000) as sender:
        http.answers.append(response(gzip.compress(b"x" * 1_000_000), Content_Encoding="gzip"))
        with pytest.raises(httpx2.DecodingError):
            await sender.get(http.url())
