"""``parley trace URL``: calls that Phoenix or Jaeger has.

The answers have the form of Arize Phoenix 20.26.1 (``GET /v1/projects/default/spans``) and of Jaeger
(``GET /api/traces``).
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from parley_client.cli.program import main
from parley_client.errors import TraceFileError, UsageError
from parley_client.waterfall import servers
from parley_client.waterfall.servers import read_server

BEGAN = datetime(2026, 11, 28, 12, tzinfo=UTC)
TRACE = "0af7651916cd43dd8448eb211c80319c"
OTHER_TRACE = f"00{'7' * 30}"
FIGURES = {"parley.e2e_ms": 612.0, "parley.outcome": "complete", "parley.content.text": "quokka"}


def call_spans(trace_id=TRACE, session="call-7"):
    """Trace, name, ids of span and parent, beginning and duration (ms), attributes, whether it failed."""
    return [
        (trace_id, "call", "0" * 15 + "1", "", 0, 9_000, {"gen_ai.conversation.id": session}, False),
        (trace_id, "turn", "0" * 15 + "2", "0" * 15 + "1", 1_900, 4_100, FIGURES, False),
        (trace_id, "tts", "0" * 15 + "3", "0" * 15 + "2", 2_400, 200, {"error.type": "overloaded"}, True),
    ]


def as_phoenix(span):
    trace_id, name, span_id, parent_id, begin_ms, ms, attributes, failed = span
    began = BEGAN + timedelta(milliseconds=begin_ms)
    return {
        "id": "U3Bhbjox",
        "context": {"trace_id": trace_id, "span_id": span_id},
        "name": name,
        "span_kind": "UNKNOWN",
        "parent_id": parent_id or None,
        "start_time": began.isoformat(),
        "end_time": (began + timedelta(milliseconds=ms)).isoformat(),
        "status_code": "ERROR" if failed else "UNSET",
        "status_message": "",
        "attributes": attributes,
        "events": [],
    }


def as_jaeger(span):
    trace_id, name, span_id, parent_id, begin_ms, ms, attributes, failed = span
    parent = {"refType": "CHILD_OF", "traceID": trace_id.lstrip("0"), "spanID": parent_id.lstrip("0")}
    tags = attributes | ({"error": True, "otel.status_code": "ERROR"} if failed else {})
    return {
        "traceID": trace_id.lstrip("0"),
        "spanID": span_id.lstrip("0"),
        "operationName": name,
        "references": [parent] if parent_id else [],
        "startTime": round(BEGAN.timestamp() * 1e6) + begin_ms * 1_000,
        "duration": ms * 1_000,
        "tags": [{"key": key, "type": "string", "value": value} for key, value in tags.items()],
        "logs": [],
        "processID": "p1",
        "warnings": None,
    }


def phoenix(spans, *, page):
    """Its answer to the path and the query, with ``page`` spans at a time."""

    def answer(path, query):
        if path != "/v1/projects/default/spans":
            return 404, "Not Found"
        fits = [
            span
            for span in spans
            if span[0] in query.get("trace_id", [span[0]]) and span[1] in query.get("name", [span[1]])
        ]
        begin = int(query.get("cursor", ["0"])[0])
        end = begin + min(page, int(query["limit"][0]))
        cursor = str(end) if end < len(fits) else None
        return 200, json.dumps(
            {"data": [as_phoenix(span) for span in fits[begin:end]], "next_cursor": cursor}
        )

    return answer


def jaeger(spans):
    def answer(path, query):
        wanted = path.removeprefix("/api/traces/")
        if path == "/api/traces":
            assert query["service"] == ["parley-voice-agent"]
            assert query["operation"] == ["call"]
            ids = dict.fromkeys(span[0] for span in spans)
        elif wanted in {span[0] for span in spans}:
            ids = {wanted: None}
        elif path.startswith("/api"):
            return 404, json.dumps({"data": None, "errors": [{"code": 404, "msg": "trace not found"}]})
        else:
            return 200, "<!doctype html>"  # its page, at any other path
        traces = [
            {"traceID": one, "spans": [as_jaeger(span) for span in spans if span[0] == one]} for one in ids
        ]
        return 200, json.dumps({"data": traces, "total": 0, "errors": None})

    return answer


@contextmanager
def serving(answer):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            parts = urlsplit(self.path)
            status, body = answer(parts.path, parse_qs(parts.query))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


TWO_CALLS = [*call_spans(), *call_spans(OTHER_TRACE, "call-8")]


@pytest.fixture(params=["phoenix", "jaeger"])
def url(request):
    answers = {"phoenix": phoenix(TWO_CALLS, page=2), "jaeger": jaeger(TWO_CALLS)}
    with serving(answers[request.param]) as running:
        yield f"{running}/"


@pytest.mark.parametrize("wanted", ["call-8", "call-8"[:6], OTHER_TRACE, OTHER_TRACE[:5]])
def test_call_named_by_session_or_trace_is_read_with_its_spans(url, wanted):
    call = read_server(url, wanted)
    assert (call.session, call.trace_id, call.began) == ("call-8", OTHER_TRACE, BEGAN)
    (turn,) = call.turns
    assert (turn.at_s, turn.outcome, turn.figures.e2e_ms) == (1.9, "complete", 612)
    assert [(row.name, row.start_ms, row.ms, row.error) for row in turn.rows] == [
        ("tts", 500, 200, "overloaded")
    ]


def test_several_calls_are_listed(url):
    with pytest.raises(UsageError) as refused:
        read_server(url, "")
    shown = str(refused.value)
    assert "2 calls are in" in shown
    assert f"call-7  trace {TRACE}" in shown


def test_unknown_call_is_refused(url):
    with pytest.raises((UsageError, TraceFileError)):
        read_server(url, "f" * 32)
    with pytest.raises(UsageError, match="no call of"):
        read_server(url, "call-9")


def test_command_draws_the_call_of_a_server(url, capsys):
    assert main(["trace", url, "call-7"]) == 0
    shown = capsys.readouterr().out
    assert "call call-7" in shown
    assert "quokka" not in shown


def test_phoenix_without_calls_has_none():
    with serving(phoenix([], page=2)) as running, pytest.raises(UsageError, match="has no call"):
        read_server(running, "")


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, "", "is neither Phoenix .* nor Jaeger"),
        (200, "<html>", "is neither Phoenix .* nor Jaeger"),
        (200, '{"data": [{}]}', "is neither Phoenix .* nor Jaeger"),
        (401, "", "answers 401"),
        (
            200,
            json.dumps({"data": [as_phoenix((*call_spans()[0][:2], "zz", *call_spans()[0][3:]))]}),
            "cannot",
        ),
    ],
)
def test_other_answers_are_one_error(status, body, words):
    with serving(lambda *_: (status, body)) as running, pytest.raises(TraceFileError, match=words):
        read_server(running, TRACE)


def test_server_that_is_not_there_is_one_error():
    with serving(lambda *_: (200, "")) as running:
        pass
    with pytest.raises(TraceFileError, match="cannot be read"):
        read_server(running, "")


def test_answers_have_limits(url, monkeypatch):
    monkeypatch.setattr(servers, "MAX_SPANS", 5)
    with pytest.raises(TraceFileError, match="more than 5 spans"):
        read_server(url, "")
    monkeypatch.setattr(servers, "_MAX_BYTES", 10)
    with pytest.raises(TraceFileError, match="more than 10 bytes"):
        read_server(url, "")
