"""How a gateway shows another one whose request it passes on."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable

from starlette.requests import HTTPConnection

HEADER = "parley-peer"
_VALID_S = 60
"""Gateways' clocks may differ by about as much."""


class PeerSeal:
    """Seals the address of a client, for one path and a short time."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._key = hmac.digest(secret, b"parley peers", "sha256")
        self._clock = clock

    def make(self, address: str, path: str) -> str:
        """The value of :data:`HEADER`."""
        expires = str(int(self._clock()) + _VALID_S)
        return f"{address} {expires} {self._sign(address, expires, path)}"

    def read(self, connection: HTTPConnection) -> str | None:
        """The client's address that another gateway has sealed; None: no gateway has, or it is too old."""
        address, _, rest = connection.headers.get(HEADER, "").partition(" ")
        expires, _, signed = rest.partition(" ")
        if not (expires.isascii() and expires.isdecimal()):
            return None
        right = self._sign(address, expires, connection.url.path)
        is_right = hmac.compare_digest(right.encode(), signed.encode())
        return address if is_right and self._clock() < int(expires[:20]) else None

    def _sign(self, address: str, expires: str, path: str) -> str:
        message = f"{address}\n{expires}\n{path}"
        return hmac.new(self._key, message.encode(), hashlib.sha256).hexdigest()
