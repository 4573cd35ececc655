"""Settings of the Triton servers behind the gateway."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from parley_gateway.settings_sections import Count, Seconds


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which Triton servers there are, and how they are watched."""

    addresses: Annotated[tuple[str, ...], Meta(min_length=1)] = ("127.0.0.1:8001",)
    """gRPC endpoints, `host:port` each."""
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
    models: tuple[str, ...] = ()
    """Models that have to answer for `/ready`, beside all that a server names."""
    metrics: tuple[str, ...] = ()
    """URLs of the servers' metrics, in the order of `addresses`, for `gpu_memory_free` in `/health`. Empty:
    port 8002 of the same hosts."""
