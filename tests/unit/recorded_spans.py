"""Spans that are kept in memory."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from parley.timeouts import loop_time
from parley.tracing import Tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """Everything that was exported."""

    def __init__(self, *, content=False, clock=loop_time):
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracing = Tracing(provider, content=content, clock=clock)

    def all(self):
        return self.exporter.get_finished_spans()

    def named(self, name):
        return sorted((span for span in self.all() if span.name == name), key=lambda span: span.start_time)

    def one(self, name):
        (span,) = self.named(name)
        return span

    def below(self, parent):
        return [span for span in self.all() if span.parent and span.parent.span_id == parent.context.span_id]


def traceparent(span):
    """As other processes get it."""
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
