"""A collector for one's own machine: takes OTLP over HTTP, and writes it to a file as JSON lines.

Why not a collector: this one is started and ended with the command that draws the calls.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self

from parley.errors import InvalidMessageError
from parley_client.errors import TraceFileError
from parley_client.waterfall import lines
from parley_client.waterfall.otlp import Span, TooManySpansError, line_of_json, line_of_protobuf, read_spans

MAX_BODY_BYTES = 1024 * 1024
"""Packed or not. What is made of it takes up to a hundred times as much memory while it is read."""
MAX_BATCH_SPANS = 4_096
"""Spans of one batch; one of OpenTelemetry's SDK has at most 512."""
MAX_REQUESTS = 8
"""At once; more are closed unanswered, and exporters try again."""
MAX_BATCHES = 256
"""That wait to be taken."""
MAX_WAITING_SPANS = 20_000
"""Spans of the batches that wait; a batch beyond it is refused, and exporters try again."""
_STALL_S = 10.0
_CONNECTION_S = 30.0
_PATH = "/v1/traces"
# Before a browser sends either type to another origin, it asks with OPTIONS, which is not answered here.
_LINES: dict[str, Callable[[bytes, int], bytes]] = {
    "application/x-protobuf": line_of_protobuf,
    "application/json": line_of_json,
}


class TraceReceiver:
    """Listens on 127.0.0.1 as long as its block runs.

    Args:
        port: 0: any free one.
        path: of the file, to which lines are appended.

    Raises:
        TraceFileError: the file cannot be written, or the port is taken.
    """

    def __init__(self, port: int, path: Path) -> None:
        self._path = path
        self._batches: queue.Queue[list[Span]] = queue.Queue(MAX_BATCHES)
        self._accepting = threading.Lock()  # one batch at a time is read: that bounds the memory
        self._failure: TraceFileError | None = None
        try:
            self._file = path.open("ab", buffering=0)  # what a full disk refused is not tried again
        except OSError as error:
            raise TraceFileError(f"{path}: cannot be written: {error.strerror or error}") from error
        try:
            self._server = _Server(("127.0.0.1", port), self._accept)
        except OSError as error:
            self._file.close()
            raise TraceFileError(f"port {port} cannot be used: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="traces", daemon=True)

    @property
    def url(self) -> str:
        """For ``OTEL_EXPORTER_OTLP_ENDPOINT``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._accepting, suppress(OSError):
            self._file.close()

    def take(self, wait_s: float) -> list[Span]:
        """The spans of the next batch; empty: none came within ``wait_s`` seconds.

        Raises:
            TraceFileError: a batch could not be written.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return self._batches.get(timeout=wait_s)
        except queue.Empty:
            return []

    def _accept(self, kind: str, body: bytes) -> HTTPStatus:
        """Write and pass on a batch; called by the threads of requests."""
        with self._accepting:
            if self._failure is not None:
                return HTTPStatus.INSUFFICIENT_STORAGE
            if self._file.closed or self._batches.full() or self._waiting() >= MAX_WAITING_SPANS:
                return HTTPStatus.SERVICE_UNAVAILABLE
            line, spans = _read(kind, body)
            try:
                self._write(line)
            except OSError as error:
                self._failure = TraceFileError(f"{self._path}: cannot be written: {error.strerror or error}")
                return HTTPStatus.INSUFFICIENT_STORAGE
            self._batches.put_nowait(spans)
        return HTTPStatus.OK

    def _waiting(self) -> int:
        """Spans that wait to be taken."""
        with self._batches.mutex:
            return sum(map(len, self._batches.queue))

    def _write(self, line: bytes) -> None:
        """Append a line. If that fails, no part of it stays where the file can be shortened."""
        before = os.fstat(self._file.fileno()).st_size
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(before)
            raise


class _RefusedError(Exception):
    """The request is answered with ``status``."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status)
        self.status = status


def _read(kind: str, body: bytes) -> tuple[bytes, list[Span]]:
    """The line of a batch, and its spans."""
    make_line = _LINES.get(kind)
    if make_line is None:
        raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    try:
        line = make_line(body, MAX_BATCH_SPANS)
        if len(line) > lines.MAX_LINE_BYTES:
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return line, read_spans(line)
    except TooManySpansError:
        raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE) from None
    except InvalidMessageError:
        raise _RefusedError(HTTPStatus.BAD_REQUEST) from None


class _Server(ThreadingHTTPServer):
    """At most :data:`MAX_REQUESTS` connections at once, each for a limited time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], accept: Callable[[str, bytes], HTTPStatus]) -> None:
        self.accept = accept
        self._places = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        end = threading.Timer(_CONNECTION_S, partial(_cut_off, request))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left, or stalls: nothing is printed."""


def _cut_off(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One request for each connection; a client that sends nothing for a while loses it."""

    server: _Server
    timeout: ClassVar[float] = _STALL_S

    def do_POST(self) -> None:
        """Answer with the status, and an empty message of the same type."""
        kind = self.headers.get_content_type()
        try:
            status = self.server.accept(kind, self._body())
        except _RefusedError as refusal:
            status = refusal.status
        body = b"{}" if kind == "application/json" else b""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if self.path != _PATH:
            raise _RefusedError(HTTPStatus.NOT_FOUND)
        if not length.isdecimal():
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED)
        if int(length) > MAX_BODY_BYTES:
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise _RefusedError(HTTPStatus.BAD_REQUEST)
        match self.headers.get("Content-Encoding", "identity"):
            case "identity":
                return body
            case "gzip":
                return _unpack(body)
        raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base
        """Print nothing: the calls are what is shown."""


def _unpack(body: bytes) -> bytes:
    """What was packed with gzip."""
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        unpacked = unpacker.decompress(body, MAX_BODY_BYTES)
    except zlib.error:
        raise _RefusedError(HTTPStatus.BAD_REQUEST) from None
    if unpacker.eof:
        return unpacked
    is_cut_off = len(unpacked) < MAX_BODY_BYTES
    raise _RefusedError(HTTPStatus.BAD_REQUEST if is_cut_off else HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
