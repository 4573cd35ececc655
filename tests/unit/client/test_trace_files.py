"""Traces and recorded events: read, chosen and drawn."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from parley import protocol
from parley_client.cli.output import OutputConsole
from parley_client.cli.program import main
from parley_client.cli.waterfall import print_waterfall
from parley_client.errors import TraceFileError, UsageError
from parley_client.events import AgentAudio
from parley_client.waterfall import lines
from parley_client.waterfall.events import EventRecorder, read_events
from parley_client.waterfall.otlp import read_spans
from parley_client.waterfall.stages import STAGES, stage_times
from parley_client.waterfall.traces import read_trace

TRACE = "0af7651916cd43dd8448eb211c80319c"
OTHER_TRACE = "1" * 32
BEGAN_NS = 1_790_000_000_000_000_000
KEPT = "parley.e2e_ms"
FIGURES = {
    "parley.e2e_ms": 612.0,
    "parley.first_audio_ms": 452.0,
    "parley.asr_final_ms": 45.0,
    "parley.end_of_turn_ms": 120.0,
    "parley.llm_first_token_ms": 180.0,
    "parley.llm_total_ms": 900.0,
}


def span(name, number, parent, begin_ms, end_ms, *, trace_id=TRACE, failed=False, **attributes):
    def value(one):
        if isinstance(one, bool):
            return {"boolValue": one}
        return {"stringValue": one} if isinstance(one, str) else {"doubleValue": one}

    return {
        "traceId": trace_id,
        "spanId": f"{number:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name,
        "startTimeUnixNano": str(BEGAN_NS + begin_ms * 1_000_000),
        "endTimeUnixNano": str(BEGAN_NS + end_ms * 1_000_000),
        "attributes": [{"key": key, "value": value(one)} for key, one in attributes.items()],
        "status": {"code": 2} if failed else {},
    }


def call_spans(session="call-7", trace_id=TRACE, first=1):
    """A call with one answer, which was interrupted."""
    call, turn, chat = first, first + 1, first + 2
    return [
        span("chat qwen3", chat, turn, 2_230, 3_130, trace_id=trace_id),
        span("generate", first + 3, chat, 2_240, 3_120, trace_id=trace_id),
        span(
            "tts",
            first + 4,
            turn,
            2_400,
            2_600,
            trace_id=trace_id,
            failed=True,
            **{"error.type": "overloaded"},
        ),
        span("asr", first + 5, turn, 1_900, 2_105, trace_id=trace_id),
        span("playback", first + 6, turn, 2_512, 6_000, trace_id=trace_id),
        span(
            "turn",
            turn,
            call,
            1_900,
            6_000,
            trace_id=trace_id,
            **FIGURES,
            **{"parley.outcome": "interrupted"},
        ),
        span(
            "call",
            call,
            0,
            0,
            9_000,
            trace_id=trace_id,
            **{"gen_ai.conversation.id": session, "parley.reason": "hangup"},
        ),
    ]


def line(spans):
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]})


@pytest.fixture
def traces(tmp_path):
    """Writes a file of traces, one line for each list of spans."""

    def write(*batches):
        path = tmp_path / "traces.jsonl"
        path.write_text("".join(f"{line(batch)}\n" for batch in batches))
        return path

    return write


def drawn(call, *, width=80, **options):
    output = io.StringIO()
    print_waterfall(OutputConsole(file=output, width=width, highlight=False, **options), call)
    return output.getvalue().splitlines()


def test_a_turn_has_its_stages_and_spans(traces):
    # Spans come in any order, in several batches.
    first, *others = call_spans()
    call = read_trace(traces(others, [first]), "")
    assert (call.session, call.trace_id, call.reason) == ("call-7", TRACE, "hangup")
    (turn,) = call.turns
    assert (turn.number, turn.at_s, turn.outcome, turn.figures.e2e_ms) == (1, 1.9, "interrupted", 612)
    rows = [(row.name, row.start_ms, row.ms, row.depth, row.error) for row in turn.rows]
    assert rows == [
        ("chat qwen3", 330, 900, 0, ""),
        ("generate", 340, 880, 1, ""),
        ("tts", 500, 200, 0, "overloaded"),
        ("playback", 612, 3_488, 0, ""),
    ]


def test_stages_follow_each_other_until_the_first_audio():
    figures = protocol.TurnMetrics(
        turn=1, e2e_ms=612, first_audio_ms=452, asr_final_ms=45, end_of_turn_ms=120, llm_first_token_ms=180
    )
    times = [(time.stage, time.start_ms, time.ms) for time in stage_times(figures)]
    assert times == [
        ("silence", 0, 160),
        ("asr_final", 160, 45),
        ("end_of_turn", 205, 120),
        ("llm_first_token", 325, 180),
        ("first_audio", 325, 287),
    ]
    assert {stage for stage, _, _ in times} < set(STAGES)


def test_figures_without_an_end_of_speech_have_no_place():
    figures = protocol.TurnMetrics(turn=1, llm_first_token_ms=30, llm_total_ms=90, tool_ms=0)
    assert [(time.stage, time.start_ms) for time in stage_times(figures)] == [
        ("llm_first_token", None),
        ("llm_total", None),
    ]


def test_the_drawing_fits_into_80_columns_without_a_terminal(traces):
    shown = drawn(read_trace(traces(call_spans()), ""), width=300)
    assert max(map(len, shown)) <= 80
    text = "\n".join(shown)
    assert "\x1b" not in text
    assert "turn 1  at 1.90 s  e2e 612 ms  interrupted" in text
    endpointing = next(one for one in shown if one.startswith("Endpointing"))
    assert endpointing.split()[1:3] == ["205", "120"]
    assert next(one for one in shown if one.startswith("playback")).endswith(">"), "longer than the axis"
    assert next(one for one in shown if one.startswith("tts")).endswith(" overloaded")


def test_names_from_a_file_cannot_move_the_cursor(traces):
    hostile = [*call_spans()[1:], span("\x1b[2Jx\u202e[red]", 99, 2, 2_000, 2_001)]
    text = "\n".join(drawn(read_trace(traces(hostile), ""), force_terminal=True, color_system=None))
    assert "\x1b" not in text
    assert "?[2Jx?[red]" in text


def test_a_call_that_goes_on_has_no_span_of_its_own_yet(traces):
    call = read_trace(traces(call_spans()[:-1]), TRACE)
    assert (call.session, len(call.turns)) == ("", 1)
    assert drawn(call)[0].startswith("call (not ended)")


def test_an_answer_that_was_discarded_is_no_turn(traces):
    discarded = span("turn", 50, 1, 1_000, 1_500, **{"parley.outcome": "discarded"})
    assert len(read_trace(traces([discarded, *call_spans()]), "").turns) == 1


@pytest.fixture
def two_calls(traces):
    return traces(call_spans(), call_spans("call-8", OTHER_TRACE, 100))


@pytest.mark.parametrize("wanted", ["call-8", OTHER_TRACE, "1111"])
def test_a_session_a_trace_or_the_beginning_of_one_names_a_call(two_calls, wanted):
    assert read_trace(two_calls, wanted).session == "call-8"


def test_several_calls_are_listed(two_calls):
    with pytest.raises(UsageError) as refused:
        read_trace(two_calls, "")
    shown = str(refused.value).splitlines()
    assert shown[0] == f"2 calls are in {two_calls}; name one of them:"
    assert shown[1].startswith(f"  call-7  trace {TRACE}  ")
    assert shown[1].endswith("  1 turn")
    with pytest.raises(UsageError, match="2 calls fit in"):
        read_trace(two_calls, "call")
    with pytest.raises(UsageError, match=r"no call of .* is 'x'; it has:"):
        read_trace(two_calls, "x")


def test_two_calls_of_one_trace_are_two(traces):
    path = traces(call_spans(), call_spans("call-8", first=100))
    assert read_trace(path, "call-8").session == "call-8"
    with pytest.raises(UsageError, match="2 calls fit"):
        read_trace(path, TRACE)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ('{"resourceMetrics": []}', "missing required field"),
        (line([{**span("x", 1, 0, 0, 1), "traceId": "zz"}]), "hexadecimal"),
        (line([{**span("x", 1, 0, 0, 1), "spanId": "ab"}]), "no id of 8 bytes"),
        (line([span("x", 1, 0, 2, 1)]), "ends before it begins"),
        (line([{**span("x", 1, 0, 0, 1), "startTimeUnixNano": "soon"}]), "invalid literal"),
        (line([{**span("x", 1, 0, 0, 1), "endTimeUnixNano": "9" * 5_000}]), "no spans"),
        (
            line(
                [{**span("x", 1, 0, 0, 1), "attributes": [{"key": KEPT, "value": {"doubleValue": "soon"}}]}]
            ),
            "could not convert",
        ),
    ],
)
def test_a_bad_line_is_named(traces, bad, why):
    path = traces(call_spans())
    path.write_text(f"{path.read_text()}\n{bad}\n")
    with pytest.raises(TraceFileError, match=f"traces.jsonl, line 3: .*{why}"):
        read_trace(path, "")


def test_a_line_has_a_limit(traces, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    with pytest.raises(TraceFileError, match="line 1: has more than 100 bytes"):
        read_trace(traces(call_spans()), "")


def test_deep_and_circular_spans_end(traces):
    chain = [span("deep", 100 + depth, 99 + depth if depth else 2, 2_000, 2_001) for depth in range(5_000)]
    circle = [span("a", 90, 91, 0, 1), span("b", 91, 90, 0, 1), span("self", 92, 92, 0, 1)]
    call = read_trace(traces([*call_spans(), *chain, *circle]), "")
    assert max(row.depth for row in call.turns[0].rows) == 8


def test_spans_of_one_id_do_not_multiply(traces):
    same = [span("x", 50, 50 if number else 2, 2_000, 2_001) for number in range(4)]
    call = read_trace(traces([*call_spans(), *same]), "")
    assert [row.name for row in call.turns[0].rows].count("x") == 1


def test_circular_spans_below_a_call_have_one_row_each(traces):
    *below, call = call_spans()
    call["parentSpanId"] = f"{50:016x}"
    circle = span("x", 50, 1, 0, 1)
    assert [row.name for row in read_trace(traces([*below, call, circle]), "").rows] == ["x"]


def test_a_batch_that_was_sent_twice_counts_once(traces, monkeypatch):
    monkeypatch.setattr("parley_client.waterfall.traces.MAX_SPANS", len(call_spans()))
    path = traces(call_spans(), call_spans())
    assert len(read_trace(path, "").turns) == 1
    two = traces(call_spans(), call_spans(), call_spans("call-8", OTHER_TRACE))
    with pytest.raises(UsageError, match="1 turn") as listed:
        read_trace(two, "")
    assert "2 turn" not in str(listed.value)


@pytest.mark.parametrize("number", [0.0, -5.0, 1e-300, 1e12, 1e308, -1e308, "nan", True])
def test_any_numbers_can_be_drawn(traces, number):
    figures = dict.fromkeys(FIGURES, number)
    far = [
        span("tts", 3, 2, 0, 0),
        span("x", 4, 2, 1, 7_000_000_000_000),
        span("turn", 2, 1, 5, 5, **figures),
        span("other", 5, 1, 0, 9_000),
    ]
    shown = drawn(read_trace(traces([*far, call_spans()[-1]]), ""))
    assert max(map(len, shown)) <= 80
    assert any(one.startswith("outside of turns") for one in shown)


def test_words_of_the_conversation_are_not_kept(traces):
    words = {"parley.content.text": "quokka", "parley.e2e_ms": "x" * 1_000}
    (kept,) = read_spans(line([span("tts", 1, 0, 0, 1, **words)]).encode())
    assert kept.attributes == {"parley.e2e_ms": "x" * 200}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_not_finite_is_dropped_and_its_span_stays(number):
    tts = span("tts", 1, 0, 0, 1, **{"parley.e2e_ms": 12.0})
    tts["attributes"] += [
        {"key": "parley.first_audio_ms", "value": {"doubleValue": number}},
        {"key": "other", "value": {"doubleValue": number}},
    ]
    (kept,) = read_spans(line([tts]).encode())
    assert kept.attributes == {"parley.e2e_ms": 12.0}


# --- recorded events ------------------------------------------------------------------------------


def record(path, session="call-7"):
    """The events of a call with a tool and an interruption; their times are those of the clock."""
    with EventRecorder(path) as recorder:
        for event in (
            protocol.ToolRequest(turn=1, call_id="c", name="get_weather", arguments={}),
            AgentAudio(1, "r1", 0, 16_000, np.zeros(160, np.int16), "It"),
            AgentAudio(1, "r1", 10, 16_000, np.zeros(160, np.int16), "is"),
            protocol.Paused(turn=1, response_id="r1", at_ms=1),
            protocol.Interrupted(turn=1, response_id="r1", played_ms=5, spoken_text="It"),
            protocol.TurnMetrics(
                turn=1, e2e_ms=500, first_audio_ms=300, asr_final_ms=50, tool_ms=70, interrupted=True
            ),
            protocol.ResponseText(turn=2, response_id="r2", text="more"),
            protocol.Closed(reason="hangup"),
        ):
            recorder.record(session, event)


def test_recorded_events_are_a_call(tmp_path):
    path = tmp_path / "events.jsonl"
    record(path)
    call = read_events(path, "")
    assert (call.session, call.trace_id, call.reason) == ("call-7", "", "hangup")
    first, second = call.turns
    assert (first.outcome, first.figures.tool_ms, second.outcome) == ("interrupted", 70, "not ended")
    assert [row.name for row in first.rows] == ["execute_tool get_weather", "playback", "interruption"]
    assert first.rows[1].start_ms == pytest.approx(500, abs=0.2)
    shown = "\n".join(drawn(call))
    assert "turn 1  at " in shown
    assert "e2e 500 ms  interrupted" in shown
    assert "Tools" in shown


def test_samples_are_not_recorded(tmp_path):
    path = tmp_path / "events.jsonl"
    record(path)
    audio = [json.loads(each) for each in path.read_text().splitlines() if '"audio"' in each]
    assert [each["event"]["samples"] for each in audio] == [160, 160]
    assert max(map(len, path.read_text().splitlines())) < 1_000


def test_calls_are_appended(tmp_path):
    path = tmp_path / "events.jsonl"
    record(path)
    record(path, "call-8")
    assert read_events(path, "call-8").session == "call-8"
    with pytest.raises(UsageError, match="2 calls are in"):
        read_events(path, "")


def test_a_line_that_is_no_event_is_named(tmp_path):
    path = tmp_path / "events.jsonl"
    record(path)
    path.write_text(path.read_text() + '{"session": "x"}\n')
    with pytest.raises(TraceFileError, match="line 9: no recorded event"):
        read_events(path, "")


# --- the command ----------------------------------------------------------------------------------


def test_the_command_tells_the_two_kinds_of_files_apart(traces, tmp_path, capsys):
    events = tmp_path / "events.jsonl"
    record(events)
    for path in (traces(call_spans()), events):
        assert main(["trace", str(path), "call-7"]) == 0
        assert "call call-7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"\xff\xfe\n", "line 1: no JSON object"),
        (b"[" * 100_000, "line 1: no JSON object"),
        (b"{}\n", "line 1: no recorded event"),
    ],
)
def test_undrawable_file_is_a_one_line_error(content, words, tmp_path, capsys):
    path = tmp_path / "file.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert main(["trace", str(path)]) == 1
    shown = capsys.readouterr().err
    assert words in " ".join(shown.split())
    assert "Traceback" not in shown
