"""HTTP to the hosts that the configuration names, and to addresses that they may have.

What a name means can change at any time (DNS rebinding), so the address that was checked is the one that
is connected to.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import cast

import httpx2

_LOOKUPS = 4
_MAX_ADDRESSES = 3
_MAX_CONNECTIONS = 128
"""To one host; a call in the background holds one for minutes, and others must not wait for it."""
_FIRST_CONNECT_S = 1.0
"""For an address after which there is another one to try."""
_GLOBAL = IPv6Network("2000::/3")
"""The allocated part of IPv6; the rest is special or reserved."""
_DOCUMENTATION = IPv6Network("3fff::/20")
_NAT64 = IPv6Network("64:ff9b::/96")


class AddressRefusedError(httpx2.ConnectError):
    """A host that is not allowed, or that has no address that is."""


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet, also behind forms that stand for another one."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(map(_is_given_out, _forms(ip)))


def _is_given_out(ip: IPv4Address | IPv6Address) -> bool:
    if isinstance(ip, IPv6Address) and ((ip not in _GLOBAL and ip not in _NAT64) or ip in _DOCUMENTATION):
        return False
    return ip.is_global and not ip.is_multicast


def _forms(ip: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    if isinstance(ip, IPv4Address):
        return [ip]
    if ip.ipv4_mapped is not None:
        return [ip.ipv4_mapped]
    forms: list[IPv4Address | IPv6Address] = [ip]
    if ip in _NAT64:
        forms.append(IPv4Address(int(ip) & 0xFFFF_FFFF))
    if ip.sixtofour is not None:
        forms.append(ip.sixtofour)
    return forms


class AnswerTooLongError(httpx2.ReadError):
    """An answer has more bytes than it may."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Connects to allowed hosts only, and to public addresses only except for private hosts.

    Proxies of the environment are not used: what is behind them could not be checked.

    Args:
        hosts: that may be connected to.
        private_hosts: those that may have any address.
        max_bytes: of the body of one answer, unless it is a stream of events; None: no limit. A request may
            have a limit of its own, as its extension ``max_bytes``.
    """

    def __init__(
        self, hosts: Collection[str], private_hosts: Collection[str], max_bytes: int | None = None
    ) -> None:
        self._private = frozenset(map(str.lower, private_hosts))
        certificates = _certificates()
        # For each host its own connections: a TLS connection has proved to be one host's.
        self._transports = {
            host.lower(): httpx2.AsyncHTTPTransport(
                verify=certificates, trust_env=False, limits=httpx2.Limits(max_connections=_MAX_CONNECTIONS)
            )
            for host in {*hosts, *private_hosts}
        }
        self._max_bytes = max_bytes
        self._threads = ThreadPoolExecutor(_LOOKUPS, "tool addresses")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request.

        Raises:
            AddressRefusedError: it may not go where it is to go.
            DecodingError: the answer is packed.
            httpx2.TransportError: it did not get there, or no answer came back.
        """
        host = request.url.raw_host.decode("ascii").lower()  # as it is sent: names may be written in punycode
        transport = self._transports.get(host)
        if transport is None:
            raise AddressRefusedError(f"host {host} is not allowed", request=request)
        addresses = await self._addresses(host, request)
        for address in addresses[:-1]:
            with suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await self._send(transport, request, host, address, {"connect": _FIRST_CONNECT_S})
        return await self._send(transport, request, host, addresses[-1], {})

    async def _send(
        self,
        transport: httpx2.AsyncHTTPTransport,
        request: httpx2.Request,
        host: str,
        address: str,
        timeouts: Mapping[str, float],
    ) -> httpx2.Response:
        # The name still stands in the header "Host", and is what the certificate must be for.
        there = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={
                **request.extensions,
                "timeout": {**request.extensions.get("timeout", {}), **timeouts},
                "sni_hostname": host,
            },
        )
        response = await transport.handle_async_request(there)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            # It could unpack to any size.
            await response.aclose()
            raise httpx2.DecodingError("the answer is packed, which was not asked for", request=request)
        max_bytes = request.extensions.get("max_bytes")
        if max_bytes is None and "text/event-stream" not in response.headers.get("content-type", ""):
            max_bytes = self._max_bytes
        if max_bytes is not None:
            response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream), max_bytes)
        return response

    async def _addresses(self, host: str, request: httpx2.Request) -> list[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(f"host {host} has no address", request=request) from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        # One that is not public may be a trap: none is used then.
        if host not in self._private and not all(map(is_public, addresses)):
            raise AddressRefusedError(f"host {host} has an address that is not public", request=request)
        return addresses[:_MAX_ADDRESSES]

    async def aclose(self) -> None:
        """Give all connections back."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for transport in self._transports.values():
            await transport.aclose()


@cache
def _certificates() -> ssl.SSLContext:
    """Those that the machine trusts; to read them takes a tenth of a second."""
    return httpx2.create_ssl_context(trust_env=False)


class _Bounded(httpx2.AsyncByteStream):
    """A body that may not be longer than it may."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise AnswerTooLongError(f"the answer is longer than {self._max_bytes} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def make_client(
    transport: GuardedTransport, headers: dict[str, str] | None = None, *, timeout: httpx2.Timeout
) -> httpx2.AsyncClient:
    """A client that keeps no cookies: they would connect one session with the next."""
    return httpx2.AsyncClient(
        transport=transport,
        headers={"User-Agent": "parley", "Accept-Encoding": "identity", **(headers or {})},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        timeout=timeout,
        trust_env=False,
        follow_redirects=False,
    )
