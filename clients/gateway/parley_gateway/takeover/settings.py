"""Settings of sessions that another gateway can take over."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from parley_gateway.settings_sections import Count, Seconds, Size


class TakeoverSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where sessions are kept, so that another gateway can take them over."""

    store: str = ""
    """Redis of all gateways: `redis://host:6379/0` (`rediss://`: TLS). Empty: a session ends with its
    gateway."""
    keys_file: str = ""
    """Keys that encrypt sessions, one line each: base64 of 32 random bytes. The first one encrypts, all
    decrypt; read again when it changes."""
    keep_s: Annotated[float, Meta(ge=10, le=600)] = 45.0
    """How long a session without a connection can be taken over."""
    hold_s: Annotated[float, Meta(ge=0, le=5)] = 0.25
    """How long events wait for the store to have the checkpoint before them."""
    store_timeout_s: Seconds = 0.5
    """How long Redis may take."""
    writes_per_s: Count = 4
    """Checkpoints of one session that are written per second, on average."""
    bytes_per_s: Size = 1_048_576
    """Bytes of them per second, on average."""
    record_bytes: Size = 1_048_576
    """Size of one session in the store; a larger one cannot be taken over."""
