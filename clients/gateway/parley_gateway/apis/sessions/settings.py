"""Settings of the sessions API."""

from __future__ import annotations

import msgspec

from parley_gateway.kinds import Count, Seconds


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sessions of ``/v1/sessions``."""

    connect_s: Seconds = 60.0
    """How long a new session waits for its stream (seconds)."""
    waiting: Count = 256
    """Sessions that wait for their stream."""
    waiting_per_key: Count = 64
    """Of them, those of one key, or of one address where no key is asked for."""
    remembered_s: Seconds = 300.0
    """How long the status of a session that is over can be asked (seconds)."""
    remembered: Count = 1_024
    """Sessions that are over and remembered; the oldest are forgotten first."""
