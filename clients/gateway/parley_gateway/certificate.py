"""The gateway's own certificate: from files, served anew as soon as they are renewed."""

from __future__ import annotations

import math
import ssl
from pathlib import Path

from cryptography import x509

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.watched import WatchedFile
from parley_gateway.settings_sections import ListenSettings


class ServedCertificate:
    """What the gateway shows to its clients.

    Each handshake shows the newest pair of certificate and key that fit each other; connections that are open
    stay as they are. Files that cannot be used, as while only one of them has been replaced, change nothing.

    Raises:
        GatewaySettingsError: they cannot be used at the start.
    """

    def __init__(self, listen: ListenSettings) -> None:
        self._listen = listen
        files = [Path(name) for name in (listen.certificate, listen.key) if name]
        try:
            self._files = WatchedFile(files, self._load)
        except GatewaySettingsError as error:
            message = f"the certificate {listen.certificate} cannot be used: {error}"
            raise GatewaySettingsError(message) from error
        self.reload = self._files.reload
        self.context = self._files.value[0]
        """For the listening sockets; it stays the same object."""
        # A pair that is loaded into a context beside an older one of another kind, such as ECDSA beside RSA,
        # does not replace it, and one that does not fit has spoilt it. So each pair has a context.
        self.context.sni_callback = self._on_hello

    @property
    def expires_s(self) -> float:
        """When the certificate that is shown is no longer valid (Unix time)."""
        return self._files.get()[1]

    def _on_hello(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """A client has begun a handshake, whether or not it names the server."""
        handshake.context = self._files.get()[0]

    def _load(self, certificate: bytes, _key: bytes = b"") -> tuple[ssl.SSLContext, float]:
        listen = self._listen
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(listen.certificate, listen.key or None, _refuse_password)
        except (OSError, ValueError, GatewaySettingsError) as error:
            raise GatewaySettingsError(str(error)) from error
        return context, _expiry(certificate)


def _expiry(pem: bytes) -> float:
    """When a file's first certificate is no longer valid (Unix time); NaN: it cannot be read."""
    try:
        return x509.load_pem_x509_certificates(pem)[0].not_valid_after_utc.timestamp()
    except ValueError:  # OpenSSL reads "TRUSTED CERTIFICATE" too, and the file may be half written
        return math.nan


def _refuse_password() -> str:
    """OpenSSL would ask the terminal, and every call would wait for the answer."""
    raise GatewaySettingsError("its key is encrypted; `openssl pkey -in KEY -out PLAIN` decrypts it")
