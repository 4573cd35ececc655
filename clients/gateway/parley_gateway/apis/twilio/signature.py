"""Twilio's signature: the proof that a request, or a WebSocket, comes from Twilio.

``X-Twilio-Signature`` is the HMAC-SHA1, by the account's auth token, of the address as Twilio knows it,
followed by the names and values of the form in the order of their names. Of a WebSocket the address begins
with ``wss``; whether it ends with a slash Twilio does not always keep.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from starlette.requests import HTTPConnection

from parley_gateway.errors import SettingsError, UnauthorizedError
from parley_gateway.security.principal import Principal
from parley_gateway.security.watched import WatchedFile

HEADER = "x-twilio-signature"
# From the announcement of a call until its stream begins (seconds).
_NONCE_S = 60
TWILIO = Principal(id="twilio", scopes=frozenset({"agent"}), kind="signature", root="signature")
"""Whoever signs with the account's auth token."""


class TwilioSignatures:
    """Checks them.

    Args:
        auth_token_file: Holds the account's auth token.
        public_url: The gateway's address as Twilio knows it.

    Raises:
        SettingsError: one of both cannot be used.
    """

    def __init__(self, auth_token_file: str, public_url: str) -> None:
        if not public_url.startswith("https://"):
            raise SettingsError("listen.public_url has to be the https address that Twilio calls")
        self._base = public_url.rstrip("/")
        self._token = WatchedFile(Path(auth_token_file), _read_token)

    @property
    def stream_url(self) -> str:
        """The address of the gateway's WebSockets, without a path."""
        return "wss" + self._base.removeprefix("https")

    def check_request(self, request: HTTPConnection, form: Mapping[str, Iterable[str]]) -> Principal:
        """Who has sent a request with this form.

        Raises:
            UnauthorizedError: not Twilio.
        """
        query = f"?{request.url.query}" if request.url.query else ""
        return self._check(request, [f"{self._base}{request.url.path}{query}"], form)

    def check_socket(self, websocket: HTTPConnection) -> Principal:
        """Who opens a WebSocket; raises as :meth:`check_request`."""
        address = f"{self.stream_url}{websocket.url.path}".rstrip("/")
        return self._check(websocket, [address, f"{address}/"], {})

    def _check(
        self, connection: HTTPConnection, addresses: Iterable[str], form: Mapping[str, Iterable[str]]
    ) -> Principal:
        given = connection.headers.get(HEADER, "").encode()
        matches = [hmac.compare_digest(given, self.sign(address, form)) for address in addresses]
        if not any(matches):
            raise UnauthorizedError("the request does not carry Twilio's signature")
        return TWILIO

    def nonce(self) -> str:
        """What lets one stream begin, for a while.

        The signature of a stream's request covers its address only, so it never changes. A nonce comes with
        the stream's first message instead. Every gateway that knows the auth token recognises it.
        """
        text = f"{int(time.time() + _NONCE_S)}.{secrets.token_urlsafe(16)}"
        return f"{text}.{self._sign_nonce(text)}"

    def check_nonce(self, nonce: str) -> tuple[str, int]:
        """The nonce's name and when it expires (seconds since 1970); whether it was used is not known here.

        Raises:
            UnauthorizedError: it is not the gateway's, or has expired.
        """
        text, _, signature = nonce.rpartition(".")
        if not nonce.isascii() or not hmac.compare_digest(signature, self._sign_nonce(text)):
            raise UnauthorizedError("the stream does not bring the nonce of /v1/twilio/voice")
        expires_at, _, name = text.partition(".")
        if int(expires_at) < time.time():
            raise UnauthorizedError("the stream's nonce has expired")
        return name, int(expires_at)

    def _sign_nonce(self, text: str) -> str:
        return hmac.new(self._token.get(), f"parley nonce {text}".encode(), hashlib.sha256).hexdigest()

    def sign(self, address: str, form: Mapping[str, Iterable[str]]) -> bytes:
        """The signature that Twilio would send."""
        text = address + "".join(
            f"{name}{value}" for name in sorted(form) for value in sorted(set(form[name]))
        )
        mac = hmac.new(self._token.get(), text.encode(), hashlib.sha1)
        return base64.b64encode(mac.digest())


def _read_token(raw: bytes) -> bytes:
    if not raw.strip():
        raise SettingsError("there is no auth token in it")
    return raw.strip()
