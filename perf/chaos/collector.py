"""A collector of traces (OTLP, HTTP) on the loopback: ``python collector.py PORT FILE``.

It drops the spans, and writes a line with the bytes of each export into the file.
"""

from __future__ import annotations

import http.server
import sys
from pathlib import Path
from typing import Any


class _Handler(http.server.BaseHTTPRequestHandler):
    file: Path

    def do_POST(self) -> None:
        """Note an export."""
        size = len(self.rfile.read(int(self.headers["Content-Length"])))
        with self.file.open("a", encoding="utf-8") as output:
            output.write(f"{size}\n")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


if __name__ == "__main__":
    _Handler.file = Path(sys.argv[2])
    with http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
