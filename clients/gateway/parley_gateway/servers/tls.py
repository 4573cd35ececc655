"""TLS to the servers: certificates from files, read again when they are renewed."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from parley.canaries.connection import TlsAddress
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.watched import WatchedFile
from parley_gateway.servers.discovery import Endpoint
from parley_gateway.servers.settings import TlsSettings


class ServerTls:
    """What the gateway shows to servers, and whom it believes.

    Files that do not fit each other, as while they are being renewed, change nothing.

    Raises:
        GatewaySettingsError: the files cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._names = [name for name in (settings.ca_file, settings.cert_file, settings.key_file) if name]
        self._files = WatchedFile([Path(name) for name in self._names], self._load)
        self.check = self._files.check
        """Looks at the files; returns whether they were renewed: then new connections have to be made."""

    @property
    def context(self) -> ssl.SSLContext:
        """For HTTPS."""
        return self._files.value[0]

    def address_of(self, endpoint: Endpoint) -> TlsAddress:
        """An endpoint, and how a connection to it is secured."""
        name = self._settings.server_name or endpoint.name
        return TlsAddress(endpoint.address, self._files.value[1], name)

    def _load(self, *contents: bytes) -> tuple[ssl.SSLContext, grpc.ChannelCredentials]:
        settings, by_name = self._settings, dict(zip(self._names, contents, strict=True))
        try:
            # gRPC reports wrong files with the first connection only, and OpenSSL at once.
            context = ssl.create_default_context(cafile=settings.ca_file or None)
            if settings.cert_file:
                context.load_cert_chain(settings.cert_file, settings.key_file)
        except (OSError, ValueError) as error:
            raise GatewaySettingsError(f"servers.tls cannot be used: {error}") from error
        credentials = grpc.ssl_channel_credentials(
            root_certificates=by_name.get(settings.ca_file),
            private_key=by_name.get(settings.key_file),
            certificate_chain=by_name.get(settings.cert_file),
        )
        return context, credentials
