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
    """gRPC endpoints, `host:port` each. `dns://name:port` stands for all addresses of the name, such as a
    headless service of Kubernetes."""
    file: str = ""
    """A file that names the servers instead of `addresses`, `host:port` on each line or as a JSON list; read
    again when it changes. Empty: none."""
    resolve_s: Seconds = 5.0
    """Time between two lookups of a name (seconds)."""
    resolve_timeout_s: Seconds = 5.0
    """Limit of one lookup (seconds)."""
    max_servers: Annotated[int, Meta(ge=1, le=1_024)] = 256
    """Servers at once; what a name or the file has beyond it is left out. Every gateway
    connects to all of them: a fleet of more is divided into cells, each with gateways of its own."""
    tls: TlsSettings | None = None
    """TLS to the servers, for gRPC and for metrics at `https://`: `ca_file`, `cert_file` and `key_file` where
    servers ask for a certificate, and `server_name` ([security.md](security.md#between-gateway-and-triton)).
    None: none."""
    attempts: Count = 3
    """Servers that are tried for one call."""
    check_s: Seconds = 5.0
    """Time between two health checks of a server that is ready (seconds)."""
    check_timeout_s: Seconds = 2.0
    """Limit of one health check (seconds)."""
    retry_s: Seconds = 0.5
    """Longest wait before a server that is not ready is checked again; it doubles each time (seconds)."""
    retry_max_s: Seconds = 10.0
    """The longest of these waits (seconds); while no server is ready, 1 s."""
    canary_s: Seconds = 30.0
    """Time between two times that every model of a server is asked something real (seconds); `check_s` while
    one fails."""
    canary_timeout_s: Seconds = 5.0
    """Limit of each of them (seconds)."""
    sessions: Count | None = None
    """The most sessions of one server that the gateways fill it to, such as `calls_held` of
    `parley capacity --json`; calls that have lost their server may exceed it. None: as many as the server
    says that it takes."""
    load_s: Seconds = 2.0
    """Time between two readings of a server's metrics, which say how full it is (seconds)."""
    slow_start_s: Annotated[float, Meta(ge=0)] = 30.0
    """How long a server that has just become ready gets fewer calls than its place would allow (seconds)."""
    models: tuple[str, ...] = ()
    """Models that have to answer for `/ready`, beside all that a server names."""
    metrics: Annotated[tuple[str, ...], POSITIONAL] = ()
    """URLs of the servers' metrics, in the order of `addresses`; `{host}` in one is the server's host. Where
    one is empty or missing: `metrics_url`."""
    metrics_url: str | None = None
    """The URL of a server's metrics, where no other is given. None: port 8002 of a server at port 8001, which
    are Triton's own, and none of others. Empty: they are not read."""

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
