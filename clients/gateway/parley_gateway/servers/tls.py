"""TLS to the servers: certificates from files, read again when they are renewed."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from parley.canaries import TlsAddress
from parley_gateway.errors import GatewaySettingsError
from parley_gateway.security.watched import WatchedFile
from parley_gateway.servers.discovery import Endpoint
from parley_gateway.servers.settings import TlsSettings

_log = logging.getLogger("parley.gateway")


class ServerTls:
    """What the gateway shows to servers, and whom it believes.

    Files that do not fit each other, as while they are being renewed, change nothing.

    Args:
        settings: Names the files.

    Raises:
        GatewaySettingsError: the files cannot be used.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._files = {
            name: WatchedFile(Path(name), bytes)
            for name in (settings.ca_file, settings.cert_file, settings.key_file)
            if name
        }
        self._seen = self._contents()
        self.context, self._credentials = self._load()

    def check(self) -> bool:
        """Look at the files, and whether they were renewed: then new connections have to be made."""
        for file in self._files.values():
            file.check()
        contents = self._contents()
        if contents == self._seen:
            return False
        self._seen = contents
        try:
            self.context, self._credentials = self._load()
        except GatewaySettingsError as error:
            _log.error("keeping the certificates that were read before: %s", error)
            return False
        _log.info("the certificates for the servers were renewed")
        return True

    def address_of(self, endpoint: Endpoint) -> TlsAddress:
        """An endpoint, and how a connection to it is secured."""
        name = self._settings.server_name or endpoint.name
        return TlsAddress(endpoint.address, self._credentials, name)

    def _contents(self) -> dict[str, bytes]:
        return {name: file.get() for name, file in self._files.items()}

    def _load(self) -> tuple[ssl.SSLContext, grpc.ChannelCredentials]:
        settings, contents = self._settings, self._seen
        try:
            # gRPC reports wrong files with the first connection only, and OpenSSL at once.
            context = ssl.create_default_context(cafile=settings.ca_file or None)
            if settings.cert_file:
                context.load_cert_chain(settings.cert_file, settings.key_file)
        except (OSError, ValueError) as error:
            names = ", ".join(self._files)
            raise GatewaySettingsError(f"servers.tls: {names} cannot be used: {error}") from error
        credentials = grpc.ssl_channel_credentials(
            root_certificates=contents.get(settings.ca_file),
            private_key=contents.get(settings.key_file),
            certificate_chain=contents.get(settings.cert_file),
        )
        return context, credentials
