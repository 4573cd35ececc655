"""Asks for the repository's index with header fields that no client library would send."""

from __future__ import annotations

import socket

_TIMEOUT_S = 10.0
_SETTINGS, _HEADERS, _DATA = 4, 1, 0
_END_STREAM, _END_HEADERS = 1, 4
_EMPTY_MESSAGE = b"\0" * 5


def lock_header(flag: str) -> tuple[str, str]:
    """Name and value of the header in ``--grpc-restricted-protocol=PROTOCOLS:NAME=VALUE``."""
    name, _, value = flag.partition("=")[2].partition(":")[2].partition("=")
    return name, value


def index_by_http2(address: str, *opening: tuple[str, str]) -> bytes:
    """What a Triton at ``address`` (``host:port``) sends back, up to the status of the call.

    ``opening`` are headers as those of :func:`lock_header`.

    Raises:
        OSError: it does not answer.
    """
    block = b"".join(
        _header(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/inference.GRPCInferenceService/RepositoryIndex"),
            (b":authority", address.encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            *((b"triton-grpc-protocol-" + name.encode(), value.encode()) for name, value in opening),
        )
    )
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
        connection.sendall(
            _frame(_HEADERS, _END_HEADERS, 1, block) + _frame(_DATA, _END_STREAM, 1, _EMPTY_MESSAGE)
        )
        received = b""
        while b"grpc-status" not in received and (piece := connection.recv(4096)):
            received += piece
    return received


def _header(name: bytes, value: bytes) -> bytes:
    """One HPACK field, in plain: not indexed, not compressed."""
    return b"".join([b"\0", *(part for text in (name, value) for part in (bytes([len(text)]), text))])


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content
