"""TLS of the server's gRPC endpoint, and how the server's own models and its launcher pass it.

Streams between models, and the canaries, use the same port as everything else. They trust the server's
file: its certificate, and, where the file is a chain, what the authorities in it have signed for the same
name. They show the certificate where the server demands one: then the authority of its clients has to have
signed it.
"""

from __future__ import annotations

import dataclasses
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley.launcher.errors import LauncherSettingsError
from parley.tls import TlsOptions

_STEPS = 8
"""Of a handshake: more than it has flights."""
_RENEWAL_S = 1.0
"""Time for the other files, once one of them was replaced."""


@dataclass(frozen=True, kw_only=True)
class ServerTls:
    """Files of the server, each PEM. Triton reads them at its start only."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    """Certificates that those of clients have to be signed by (mutual TLS); None: clients need none."""

    def own_options(self) -> TlsOptions:
        """How this machine calls the server, and the server itself.

        Raises:
            LauncherSettingsError: it cannot, or a file cannot be used.
        """
        accepting = self._context(ssl.PROTOCOL_TLS_SERVER)
        calling = self._context(ssl.PROTOCOL_TLS_CLIENT)
        try:
            names = _shake_hands(accepting, calling)
        except ssl.SSLError as error:
            raise LauncherSettingsError(f"{self.cert_file} cannot be used: {_reason(error)}.") from error
        if self.client_ca_file is not None:
            accepting.verify_mode = ssl.CERT_REQUIRED
            try:
                accepting.load_verify_locations(self.client_ca_file)
            except (OSError, ValueError) as error:
                raise LauncherSettingsError(f"{self.client_ca_file} cannot be used: {error}.") from error
            try:
                _shake_hands(accepting, calling)
            except ssl.SSLError as error:
                raise LauncherSettingsError(
                    f"{self.cert_file} is not accepted by {self.client_ca_file}: {_reason(error)}. The "
                    "server's models call each other at its port, and show this certificate: let the "
                    "authority of the clients sign it, for the usages of a server and of a client."
                ) from error
        if not names:
            raise LauncherSettingsError(f"{self.cert_file} names no host (subjectAltName).")
        is_mutual = self.client_ca_file is not None
        return TlsOptions(
            ca_file=self.cert_file,
            server_name=names[0],
            cert_file=self.cert_file if is_mutual else None,
            key_file=self.key_file if is_mutual else None,
        )

    def copy_to(self, folder: Path) -> tuple[ServerTls, TlsOptions]:
        """The same with copies, and how they are called: what models read later is what Triton has read.

        A renewal replaces one file after the other: copies that cannot be used are made once more.

        Raises:
            LauncherSettingsError: a file cannot be read or used.
        """
        try:
            copies = self._copy_to(folder)
            return copies, copies.own_options()
        except LauncherSettingsError:
            time.sleep(_RENEWAL_S)
        copies = self._copy_to(folder)
        return copies, copies.own_options()

    def _copy_to(self, folder: Path) -> ServerTls:
        copies = {}
        for field in dataclasses.fields(self):
            source: Path | None = getattr(self, field.name)
            if source is None:
                continue
            copies[field.name] = folder / f"{field.name}.pem"
            copies[field.name].touch(mode=0o600)
            try:
                copies[field.name].write_bytes(source.read_bytes())
            except OSError as error:
                raise LauncherSettingsError(f"{source} cannot be read: {error.strerror}.") from error
        return ServerTls(**copies)

    def flags(self) -> list[str]:
        """For the command line of ``tritonserver``."""
        flags = [
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={self.cert_file}",
            f"--grpc-server-key={self.key_file}",
        ]
        if self.client_ca_file is not None:
            flags += ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={self.client_ca_file}"]
        return flags

    def _context(self, protocol: ssl._SSLMethod) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        # The certificate is trusted although it is not that of an authority.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password="")
            if protocol is ssl.PROTOCOL_TLS_CLIENT:
                context.load_verify_locations(self.cert_file)
        except (OSError, ValueError) as error:
            raise LauncherSettingsError(
                f"{self.cert_file} and {self.key_file} cannot be used: {error}."
            ) from error
        return context


def _shake_hands(accepting: ssl.SSLContext, calling: ssl.SSLContext) -> list[str]:
    """Let both agree in memory; returns the names in the certificate, those of hosts before addresses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = accepting.wrap_bio(to_server, to_client, server_side=True)
    client = calling.wrap_bio(to_client, to_server)
    for _ in range(_STEPS):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate: dict[str, Any] = client.getpeercert() or {}
    names: dict[str, list[str]] = {"DNS": [], "IP Address": []}
    for kind, name in certificate.get("subjectAltName", ()):
        if kind in names:
            names[kind].append(name)
    return [name.replace("*", "parley", 1) for name in names["DNS"]] + names["IP Address"]


def _reason(error: ssl.SSLError) -> str:
    return getattr(error, "verify_message", "") or error.reason or str(error)
