"""A collector of traces (OTLP, HTTP) that notes the size of exports: ``python collector.py PORT FILE``."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Collector(http.server.ThreadingHTTPServer):
    """Takes exports of spans, and drops them.

    Args:
        port: on the loopback; 0: any.
        file: gets a line with the bytes of each export; None: nothing is written.
    """

    def __init__(self, port: int = 0, file: Path | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.file = file
        self.exports = 0

    @property
    def url(self) -> str:
        """What exporters are given."""
        return f"http://127.0.0.1:{self.server_port}"

    def count(self, size: int) -> None:
        """Note an export."""
        self.exports += 1
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as output:
                output.write(f"{size}\n")


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        """Count an export."""
        self.server.count(len(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that runs in a thread."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


if __name__ == "__main__":
    with Collector(int(sys.argv[1]), Path(sys.argv[2])) as alone:
        print(alone.url, flush=True)
        alone.serve_forever()
