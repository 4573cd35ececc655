"""A model hub with faults on request."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee"
REPOSITORY = "maker/model"


class FakeHub:
    """Serves one repository; ``faults`` are used up one by one, each by one request for a large file.

    A fault is called with the handler and the content, and does the answering.
    """

    def __init__(
        self, files: dict[str, bytes], *, small: tuple[str, ...] = (), host: str = "127.0.0.1"
    ) -> None:
        self.files = files
        self.small = small
        self.faults: list = []
        self.small_faults: list = []
        """For requests of small files."""
        self.api_faults: list = []
        self.announced: dict[str, str] = {}
        self.commit = COMMIT
        """Of the branch; the files are the same."""
        self.requests: list[tuple[str, str | None]] = []
        self.commits: list[str] = []
        """Of the files that were requested."""
        self.tokens: set[str | None] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.serve(self)

            def log_message(self, *_):
                """Nothing."""

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def address(self):
        host, port = self._server.server_address[:2]
        return f"http://{host}:{port}"

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, handler):
        path = handler.path.partition("?")[0]
        self.tokens.add(handler.headers.get("Authorization"))
        if path.startswith("/api/"):
            if self.api_faults:
                self.api_faults.pop(0)(handler, b"")
            elif path in (f"/api/models/{REPOSITORY}", f"/api/models/{REPOSITORY}/revision/main"):
                send(handler, json.dumps(self._about()).encode())
            else:
                send(handler, b"{}", status=404)
            return
        prefix = f"/{REPOSITORY}/resolve/"
        commit, _, name = path.removeprefix(prefix).partition("/")
        self.requests.append((name, handler.headers.get("Range")))
        self.commits.append(commit)
        if not path.startswith(prefix) or commit not in (COMMIT, self.commit) or name not in self.files:
            send(handler, b"", status=404)
        elif faults := self.small_faults if name in self.small else self.faults:
            faults.pop(0)(handler, self.files[name])
        else:
            proper(handler, self.files[name])

    def _about(self):
        siblings = [self._entry(name, content) for name, content in self.files.items()]
        return {"id": REPOSITORY, "modelId": REPOSITORY, "sha": self.commit, "siblings": siblings}

    def _entry(self, name, content):
        entry = {"rfilename": self.announced.get(name, name), "size": len(content)}
        if name in self.small:
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # noqa: S324 - git's
            return {**entry, "blobId": blob}
        lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 9}
        return {**entry, "blobId": "pointer", "lfs": lfs}


def send(handler, body, *, status=200, headers=None, length=None):
    handler.send_response(status)
    for key, value in {
        "Content-Length": str(len(body) if length is None else length),
        **(headers or {}),
    }.items():
        handler.send_header(key, value)
    handler.end_headers()
    handler.wfile.write(body)


def proper(handler, content):
    wanted = handler.headers.get("Range")
    if not wanted:
        send(handler, content)
        return
    first = int(wanted.removeprefix("bytes=").removesuffix("-"))
    place = f"bytes {first}-{len(content) - 1}/{len(content)}"
    send(handler, content[first:], status=206, headers={"Content-Range": place})


def ignores_range(handler, content):
    send(handler, content)


def resumes_elsewhere(handler, content):
    place = f"bytes 0-{len(content) - 1}/{len(content)}"
    send(handler, content, status=206, headers={"Content-Range": place})


def spoiled(handler, content):
    send(handler, bytes(len(content)))


def too_long(handler, content):
    send(handler, content + b"more")


def breaks_after(count):
    """Promise the rest, send ``count`` bytes of it, and hang up."""

    def fault(handler, content):
        first = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        rest = content[first:]
        place = f"bytes {first}-{len(content) - 1}/{len(content)}"
        status, headers = (206, {"Content-Range": place}) if first else (200, {})
        send(handler, rest[:count], status=status, headers=headers, length=len(rest))
        handler.wfile.flush()
        handler.close_connection = True

    return fault


def status(code, **headers):
    def fault(handler, _content):
        send(
            handler,
            b"",
            status=code,
            headers={key.replace("_", "-"): value for key, value in headers.items()},
        )

    return fault


def redirects(address):
    def fault(handler, _content):
        send(handler, b"", status=302, headers={"Location": address})

    return fault
