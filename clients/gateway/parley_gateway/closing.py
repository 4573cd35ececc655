"""How WebSockets are closed: the code says whose turn it is, the reason is a stable word.

==== ============================================================================================
1000 The call is over as somebody wished: ``hangup``, ``ended``, ``idle``, ``silence``.
1001 ``going_away``: this gateway, or its server, shuts down; connect again, to another one.
1008 The client did what is not allowed: ``rate_limited``, ``invalid_message``, ``session_expired``...;
     or may no longer stay: ``credentials_revoked``, ``credentials_expired``.
1009 ``message_too_large``
1011 Something failed here: ``call_lost``, ``internal_error``...
1013 Try again later: ``slow_reader``, ``too_many_calls``, ``no_server_ready``, ``overloaded``...
==== ============================================================================================
"""

from __future__ import annotations

from typing import NamedTuple

from parley.errors import ParleyError, ShuttingDownError
from parley_gateway.errors import RateLimitedError, status_of

_WISHED = ("ended", "hangup", "idle", "silence")
_BY_STATUS = {413: 1009, 429: 1013, 503: 1013, 504: 1013}


class Close(NamedTuple):
    """How a WebSocket is closed."""

    code: int
    reason: str


HANGUP = Close(1000, "hangup")
GOING_AWAY = Close(1001, "going_away")
SLOW_READER = Close(1013, "slow_reader")


def close_of_call(reason: str) -> Close:
    """How a WebSocket is closed after the agent has said ``closed`` with this reason."""
    if reason == "shutdown":
        return GOING_AWAY
    return Close(1000 if reason in _WISHED else 1011, reason)


def close_of(error: ParleyError) -> Close:
    """How a WebSocket that failed with ``error`` is closed."""
    if isinstance(error, ShuttingDownError):
        return GOING_AWAY
    if isinstance(error, RateLimitedError):
        return Close(1008, error.code)
    status = status_of(error)
    return Close(_BY_STATUS.get(status, 1011 if status >= 500 else 1008), error.code)
