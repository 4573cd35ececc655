"""Settings of the Triton servers behind the gateway."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from parley_gateway.settings_sections import POSITIONAL, Count, Seconds


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS to the servers; the files are PEM, and read again when they change."""

    ca_file: str = ""
    """Certificates that a server's may be signed by. Empty: those of the system."""
    cert_file: str = ""
    """The gateway's own certificate chain, where servers ask for one. Empty: none."""
    key_file: str = ""
    """Its private key."""
    server_name: str = ""
    """What the servers' certificates name. Empty: the name that a server was found by, or the host of its
    address."""

    def __post_init__(self) -> None:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file are given together")


DNS = "dns://"
"""Begins an address that is a name to be resolved."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which Triton servers there are, and how they are watched."""

    addresses: Annotated[tuple[str, ...], Meta(min_length=1)] = ("127.0.0.1:8001",)
    """gRPC endpoints: `host:port`, or `dns://name:port` for all addresses of a name."""
    file: str = ""
    """File that names the servers instead of `addresses`: `host:port` on each line, or a JSON list; read
    again when it changes."""
    resolve_s: Seconds = 5.0
    """Time between two lookups of a name."""
    resolve_timeout_s: Seconds = 5.0
    """Limit of one lookup."""
    max_servers: Annotated[int, Meta(ge=1, le=1_024)] = 256
    """Servers at once; further ones are ignored. A larger fleet is divided into cells with gateways of
    their own."""
    tls: TlsSettings | None = None
    """TLS to the servers: `ca_file`, `cert_file`, `key_file`, `server_name`
    ([security.md](security.md#between-gateway-and-triton)). None: no TLS."""
    attempts: Count = 3
    """Servers that are tried for one call."""
    check_s: Seconds = 5.0
    """Time between two health checks of a server that is ready."""
    check_timeout_s: Seconds = 2.0
    """Limit of one health check."""
    retry_s: Seconds = 0.5
    """Longest wait before a server that is not ready is checked again; it doubles each time."""
    retry_max_s: Seconds = 10.0
    """The longest of these waits; while no server is ready, 1 s."""
    canary_s: Seconds = 30.0
    """Time between two canaries of every model of a server; `check_s` while one fails."""
    canary_timeout_s: Seconds = 5.0
    """Limit of one canary."""
    sessions: Count | None = None
    """Most sessions of one server, such as `calls_held` of `parley capacity --json`; calls that have lost
    their server may exceed it. None: the server's own limit."""
    load_s: Seconds = 2.0
    """Time between two readings of a server's metrics."""
    slow_start_s: Annotated[float, Meta(ge=0)] = 30.0
    """How long a server that has just become ready gets fewer calls."""
    models: tuple[str, ...] = ()
    """Models that have to answer for `/ready`, beside those that a server names."""
    metrics: Annotated[tuple[str, ...], POSITIONAL] = ()
    """URLs of the servers' metrics, in the order of `addresses`; `{host}` is the server's host. Empty or
    missing: `metrics_url`."""
    metrics_url: str | None = None
    """URL of a server's metrics where no other is given. None: port 8002 of a server at port 8001. Empty:
    they are not read."""

    def __post_init__(self) -> None:
        for address in self.addresses:
            split_address(address.removeprefix(DNS))

    @property
    def max_connected(self) -> int:
        """The most servers that there can be at once."""
        is_fixed = not self.file and not any(address.startswith(DNS) for address in self.addresses)
        return min(self.max_servers, len(self.addresses)) if is_fixed else self.max_servers


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``, or of ``[address]:port`` for IPv6.

    Raises:
        ValueError: it has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{address!r} is not host:port")
    return host, int(port)
