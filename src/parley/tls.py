"""TLS of a connection to a Triton: certificates and keys in files."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from parley.errors import InvalidInputError

CA_VARIABLE = "PARLEY_GRPC_CA_FILE"
NAME_VARIABLE = "PARLEY_GRPC_SERVER_NAME"
CERT_VARIABLE = "PARLEY_GRPC_CERT_FILE"
KEY_VARIABLE = "PARLEY_GRPC_KEY_FILE"
VARIABLES = (CA_VARIABLE, NAME_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)
"""Of the environment of models and of the command ``parley``."""


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """How a Triton is spoken to by TLS. The files are PEM, and are read for each new connection."""

    ca_file: Path | None = None
    """Certificates that the server's may be signed by; None: those that the system trusts."""
    server_name: str = ""
    """What the server's certificate names; empty: the host of its address."""
    cert_file: Path | None = None
    """The caller's certificate chain, where the server demands one (mutual TLS)."""
    key_file: Path | None = None

    def __post_init__(self) -> None:
        """Raise ``InvalidInputError`` for a certificate without its key, or a key without its certificate."""
        if bool(self.cert_file) != bool(self.key_file):
            raise InvalidInputError("TLS: a certificate and its key are given together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Of a channel to the server.

        Raises:
            InvalidInputError: a file cannot be read, is no certificate or key, or they do not fit each other.
        """
        try:
            # gRPC reports wrong files with the first call only, and only in its log; OpenSSL at once.
            self._make_context()
            return grpc.ssl_channel_credentials(
                root_certificates=self.ca_file.read_bytes() if self.ca_file else read_system_roots(),
                private_key=self.key_file.read_bytes() if self.key_file else None,
                certificate_chain=self.cert_file.read_bytes() if self.cert_file else None,
            )
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise self._refusal(error) from error

    def context(self) -> ssl.SSLContext:
        """Of a connection that is not gRPC's; ``server_name`` is not part of it.

        Raises:
            InvalidInputError: as :meth:`credentials`.
        """
        try:
            return self._make_context()
        except (OSError, ValueError) as error:
            raise self._refusal(error) from error

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file, password="")
        return context

    def _refusal(self, error: Exception) -> InvalidInputError:
        files = [str(file) for file in (self.ca_file, self.cert_file, self.key_file) if file]
        return InvalidInputError(f"TLS: {', '.join(files)} cannot be used: {error}")

    def environment(self) -> dict[str, str]:
        """The variables that :func:`read_tls` reads."""
        values = (self.ca_file, self.server_name, self.cert_file, self.key_file)
        return {name: str(value) for name, value in zip(VARIABLES, values, strict=True) if value}

    def channel_options(self) -> list[tuple[str, Any]]:
        """Arguments of a gRPC channel to the server."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def read_tls(environment: Mapping[str, str]) -> TlsOptions | None:
    """What the variables say; None: they name no file, so there is no TLS.

    Raises:
        InvalidInputError: a certificate is named without its key, or a key without its certificate.
    """
    ca_file, cert_file, key_file = (
        Path(name) if (name := environment.get(variable)) else None
        for variable in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)
    )
    if ca_file is None and cert_file is None and key_file is None:
        return None
    return TlsOptions(
        ca_file=ca_file,
        server_name=environment.get(NAME_VARIABLE, ""),
        cert_file=cert_file,
        key_file=key_file,
    )


def read_system_roots() -> bytes | None:
    """The certificates that the system trusts, as one PEM; None where they are no file."""
    found = ssl.get_default_verify_paths().cafile
    try:
        return Path(found).read_bytes() if found else None
    except OSError:
        return None
