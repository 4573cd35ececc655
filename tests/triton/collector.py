"""A collector that keeps the spans that it gets by OTLP over HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

DEADLINE_S = 30
ID_FIELDS = ("traceId", "spanId", "parentSpanId")


class Collector:
    """Spans by name, with the service that sent them."""

    def __init__(self, address):
        self.url = f"http://{address[0]}:{address[1]}"
        self.batches = []
        self._spans = []
        self._forgotten = set()
        self.changed = threading.Condition()

    @property
    def spans(self):
        return [(service, span) for service, span in self._spans if span.trace_id not in self._forgotten]

    def forget(self):
        """Leave out the traces that are known until now."""
        with self.changed:
            self._forgotten = {span.trace_id for _, span in self._spans}

    def receive(self, body):
        request = ExportTraceServiceRequest.FromString(body)
        with self.changed:
            self.batches.append(request)
            for resource in request.resource_spans:
                names = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self._spans += [(names["service.name"], span) for span in scope.spans]
            self.changed.notify_all()

    def named(self, name):
        return [span for _, span in self.spans if span.name == name]

    def missing(self, names):
        return [name for name in names if not self.named(name)]

    async def until(self, condition):
        def wait():
            with self.changed:
                return self.changed.wait_for(condition, DEADLINE_S)

        assert await asyncio.to_thread(wait), sorted(span.name for _, span in self.spans)

    def write(self, path):
        """As the file exporter of the OpenTelemetry Collector does: JSON lines with ids in hexadecimal."""
        with path.open("w") as file:
            for batch in self.batches:
                data = MessageToDict(batch, use_integers_for_enums=True)
                for resource in data["resourceSpans"]:
                    for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
                        ids = {name: base64.b64decode(span[name]).hex() for name in ID_FIELDS if name in span}
                        span.update(ids)
                file.write(f"{json.dumps(data)}\n")


@contextmanager
def collecting():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            collector.receive(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_address)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
