"""Twilio's signature, which authenticates requests and WebSockets.

``X-Twilio-Signature`` is the HMAC-SHA1, by the account's auth token, of the URL that Twilio requests,
followed by the names and values of the form in the order of their names. The URL of a WebSocket begins with
``wss``; Twilio sometimes adds or removes a slash at its end.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from starlette.requests import HTTPConnection

from parley_gateway.errors import GatewaySettingsError, UnauthorizedError
from parley_gateway.security.principal import Principal
from parley_gateway.security.watched import WatchedFile

HEADER = "x-twilio-signature"
# From the webhook of a call until its stream begins (seconds).
_NONCE_S = 60
_NONCE_BYTES = 12
TWILIO = Principal(id="twilio", scopes=frozenset({"agent"}), kind="signature", root="signature")
"""The principal of requests signed with the account's auth token."""


class TwilioSignatures:
    """Checks signatures, and the nonces of streams; ``public_url`` is the gateway's URL at Twilio."""

    def __init__(self, auth_token_file: str, public_url: str) -> None:
        if not public_url.startswith("https://"):
            raise GatewaySettingsError("listen.public_url must be the https URL that Twilio requests")
        self._base = public_url.rstrip("/")
        self._token = WatchedFile(Path(auth_token_file), _read_token)

    @property
    def base_url(self) -> str:
        """The gateway's address at Twilio, without a path."""
        return self._base

    @property
    def stream_url(self) -> str:
        """The address of the gateway's WebSockets, without a path."""
        return "wss" + self._base.removeprefix("https")

    def check_request(self, request: HTTPConnection, form: Mapping[str, Iterable[str]]) -> Principal:
        """The principal of a request with this form; raises UnauthorizedError."""
        query = f"?{request.url.query}" if request.url.query else ""
        return self._check(request, [f"{self._base}{request.url.path}{query}"], form)

    def check_socket(self, websocket: HTTPConnection) -> Principal:
        """The principal of a WebSocket's request; raises UnauthorizedError."""
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
        """A value that admits one stream, for a while.

        The signature of a stream's request covers its URL only, so it never changes. Therefore the stream's
        first message contains a nonce. Every gateway with the auth token accepts it.
        """
        text = f"{int(time.time() + _NONCE_S)}.{secrets.token_urlsafe(16)}"
        return f"{text}.{self._sign_nonce(text)}"

    def check_nonce(self, nonce: str) -> tuple[str, int]:
        """The name and expiry (seconds since 1970) of an unexpired nonce of the gateway, used or not."""
        text, _, signature = nonce.rpartition(".")
        if not nonce.isascii() or not hmac.compare_digest(signature, self._sign_nonce(text)):
            raise UnauthorizedError("the stream lacks the nonce of /v1/twilio/voice")
        expires_at, _, name = text.partition(".")
        if int(expires_at) < time.time():
            raise UnauthorizedError("the stream's nonce has expired")
        return name, int(expires_at)

    def call_token(self, call_sid: str) -> str:
        """With which a call goes on at another gateway. Every gateway with the auth token knows it."""
        digest = hmac.new(self._token.get(), f"parley call {call_sid}".encode(), hashlib.sha256)
        return f"twilio_{digest.hexdigest()}"

    def seal(self, text: str) -> str:
        """Encrypt a text that comes back in an URL. Every gateway with the auth token reads it."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return base64.urlsafe_b64encode(nonce + self._cipher().encrypt(nonce, text.encode(), None)).decode()

    def unseal(self, sealed: str) -> str:
        """The text of :meth:`seal`; raises UnauthorizedError."""
        try:
            raw = base64.urlsafe_b64decode(sealed)
            return self._cipher().decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], None).decode()
        except (ValueError, InvalidTag) as error:
            raise UnauthorizedError("the text was not sealed by this gateway") from error

    def _cipher(self) -> AESGCM:
        return AESGCM(hmac.digest(self._token.get(), b"parley sealed text", "sha256"))

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
        raise GatewaySettingsError("the file has no auth token")
    return raw.strip()
