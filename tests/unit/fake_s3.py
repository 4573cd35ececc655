"""An object store on this machine: the part of S3's protocol that voices and calls need."""

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "parley-test"


class FakeS3(ThreadingHTTPServer):
    """One bucket. ``page`` is the longest list; failures are taken in turn, one for each request."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = {}
        self.requests = []
        self.failures = []  # status codes; 0: no answer until the server closes
        self.page = 1000
        self.access_key = "voice-keeper"
        self.closing = threading.Event()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if (key := self._accepted()) is None:
            return
        if key == "":
            self._list(parse_qs(urlsplit(self.path).query))
        elif key in self.server.objects:
            body = self.server.objects[key]
            if (part := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))) is None:
                self._answer(200, body)
            else:
                begin, last = int(part[1]), min(int(part[2]), len(body) - 1)
                self._answer(
                    206, body[begin : last + 1], {"Content-Range": f"bytes {begin}-{last}/{len(body)}"}
                )
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if (key := self._accepted()) is not None:
            self.server.objects[key] = body
            self._answer(200, b"")

    def do_DELETE(self):
        if (key := self._accepted()) is not None:
            self.server.objects.pop(key, None)
            self._answer(204, b"")

    def _accepted(self):
        """The key; None if the request was answered already."""
        self.server.requests.append(f"{self.command} {self.path}")
        if self.server.failures:
            status = self.server.failures.pop(0)
            if status == 0:
                self.server.closing.wait(30)
                self.close_connection = True
            else:
                self._answer(status, b"<Error><Code>Failure</Code></Error>")
            return None
        if f"Credential={self.server.access_key}/" not in self.headers.get("Authorization", ""):
            self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            return None
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        if bucket != BUCKET:
            self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            return None
        return key

    def _list(self, query):
        def asked(name):
            return query.get(name, [""])[0]

        after = asked("continuation-token") or asked("start-after")
        keys = [key for key in sorted(self.server.objects) if key.startswith(asked("prefix")) and key > after]
        page = keys[: self.server.page]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.objects[key])}</Size>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for key in page
        )
        more = len(keys) > len(page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        self._answer(
            200,
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>".encode(),
        )

    def _answer(self, status, body, headers=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving():
    server = FakeS3()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
