"""Figures of profile exports, as perf_analyzer 2.51 writes them."""

import json

import pytest
from perf_analyzer.export import RunFailedError, measure, read_export

MS = 1_000_000
T0 = 1_795_000_000_000_000_000


def request(at_ms, *responses, sequence=None):
    """A request of the export; each response is its time and its outputs."""
    written = {
        "timestamp": T0 + at_ms * MS,
        "request_inputs": {"REQUEST": "{}"},
        "response_timestamps": [T0 + time * MS for time, _ in responses],
        "response_outputs": [outputs for _, outputs in responses],
    }
    return written if sequence is None else written | {"sequence_id": sequence}


END = {"CHUNK": "", "AUDIO": ""}
"""The response that only ends a request."""


def chunk(*samples):
    """A piece of audio; the program writes an array of one element, or of none, as a number."""
    return {"CHUNK": "{}", "AUDIO": list(samples) if len(samples) > 1 else 7}


@pytest.fixture
def read(tmp_path):
    """Writes an export of these requests and reads it."""

    def call(*requests):
        path = tmp_path / "export.json"
        experiment = {
            "experiment": {"mode": "concurrency", "value": 1},
            "requests": list(requests),
            "window_boundaries": [T0, T0 + 9_000 * MS],
        }
        path.write_text(
            json.dumps({"experiments": [experiment], "version": "2.51.0", "service_kind": "triton"})
        )
        return read_export(path)

    return call


def test_one_response_for_each_request(read):
    figures = measure(read(*(request(10 * n, (10 * n + n, {"REPLY": "{}"})) for n in range(1, 101))))
    assert (figures.requests, figures.sequences) == (100, 0)
    assert (figures.p50, figures.p95, figures.p99) == (50, 95, 99)
    assert (figures.first_p50, figures.first_p95) == (50, 95)
    assert figures.per_second == pytest.approx(100 / 1.090)


def test_the_empty_end_is_no_response(read):
    figures = measure(read(request(0, (20, chunk(1, 2)), (50, chunk(3, 4)), (300, END))))
    assert (figures.first_p50, figures.p50) == (20, 50)
    assert figures.per_second == pytest.approx(1 / 0.3)


def test_an_answer_with_nothing_but_its_end_has_no_first_response(read):
    figures = measure(read(request(0, (5, END))))
    assert (figures.p50, figures.first_p50) == (5, None)


def test_the_first_response_is_the_first_with_audio(read):
    requests = read(request(0, (4, chunk()), (20, chunk(1, 2)), (50, END)))
    assert measure(requests).first_p50 == 4
    assert measure(requests, first_output="AUDIO").first_p50 == 20
    assert measure(requests, first_output="TEXT").first_p50 is None


def test_a_stream_is_waited_for_at_its_end(read):
    """Its other requests bring audio that goes on, and are answered sooner or later than the text is."""
    reply = {"REPLY": "{}"}
    requests = read(
        request(20, (90, reply), sequence=1),
        request(0, (5, reply), sequence=1),
        request(3, (6, reply), sequence=2),
        request(30, (40, reply), sequence=2),
        request(50, (350, reply), sequence=3),
    )
    figures = measure(requests, steps=2)
    assert (figures.requests, figures.sequences) == (5, 2), "a part of the third one is not in the export"
    assert (figures.first_p50, figures.first_p95) == (10, 70)
    assert figures.p99 == 300, "latency is that of every request"


def test_requests_without_an_answer_do_not_count(read):
    figures = measure(read(request(0, (5, {"REPLY": "{}"})), request(1)))
    assert figures.requests == 1
    with pytest.raises(RunFailedError, match="no request was answered"):
        measure(read(request(1)))


@pytest.mark.parametrize("content", ["", "{", "{}", '{"experiments": [{"requests": []}]}', "[]"])
def test_an_export_without_requests(tmp_path, content):
    path = tmp_path / "export.json"
    path.write_text(content)
    with pytest.raises(RunFailedError, match="profile export"):
        read_export(path)
    with pytest.raises(RunFailedError):
        read_export(tmp_path / "absent.json")
