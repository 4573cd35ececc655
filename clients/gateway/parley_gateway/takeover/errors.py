"""What can go wrong when a session is taken over.

Apart from :mod:`parley_gateway.errors` because only sessions have these.
"""

from __future__ import annotations

from parley_gateway.errors import GatewayError


class NotResumableError(GatewayError):
    """No session can be taken over with this token and these credentials.

    One error for every reason, so that it says nothing about sessions of others.
    """

    code = "not_resumable"
    status = 410


class TakeoverUnavailableError(GatewayError):
    """The store of the sessions does not answer."""

    code = "takeover_unavailable"
    status = 503
    retryable = True


class SessionTakenOverError(GatewayError):
    """Another connection has taken the session over; this one ends."""

    code = "taken_over"
    status = 409
