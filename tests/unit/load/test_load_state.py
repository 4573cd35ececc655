"""The state of a call: what is measured of the events that arrive."""

import numpy as np
import pytest
from load.microphone import Spoken
from load.state import (
    CallState,
    CutOffError,
    MissedError,
    NoAnswerError,
    ServerError,
    UnderrunError,
)

from parley import protocol
from parley_client.events import AgentAudio


class Tape:
    """A call whose events are written down with their times."""

    def __init__(self):
        self.rows = []
        self.state = CallState(self.rows.append, began_s=10.0)
        self.state.on_event(protocol.Connected(session_id="s", output_sample_rate=8_000), 10.25)

    def say(self, began_s, ended_s, **options):
        return self.state.say(Spoken(began_s, ended_s), **{"expects_answer": True, **options})

    def audio(self, response, at_s, length_s=1.0, turn=1):
        samples = np.zeros(round(8_000 * length_s), np.int16)
        self.state.on_event(AgentAudio(turn, response, 0, 8_000, samples, ""), at_s)

    def done(self, response, at_s, turn=1):
        self.state.on_event(protocol.ResponseDone(turn=turn, response_id=response, audio_ms=0), at_s)

    def on(self, event, at_s):
        self.state.on_event(event, at_s)

    def of(self, name):
        return [
            (row.ms if row.ms is None else round(row.ms), type(row.error))
            for row in self.rows
            if row.name == name
        ]


NONE = type(None)


@pytest.fixture
def tape():
    return Tape()


def test_connecting_and_the_greeting_count_from_the_beginning_of_the_call(tape):
    tape.audio("hello", 11.0)
    tape.audio("hello", 11.5)
    assert tape.of("connect") == [(250, NONE)]
    assert tape.of("greeting") == [(1_000, NONE)]
    assert tape.state.greeting is not None
    assert not tape.state.greeting.is_over
    tape.done("hello", 11.6)
    assert tape.state.greeting.is_over


def test_a_greeting_that_does_not_come_is_counted(tape):
    tape.state.settle_greeting()
    assert tape.of("greeting") == [(None, NoAnswerError)]


def test_first_audio_counts_from_the_true_end_of_speech(tape):
    speech = tape.say(12.0, 13.0)
    assert not tape.state.is_answered(speech, 13.2)
    tape.audio("r1", 13.4)
    assert tape.of("first audio") == [(400, NONE)]
    assert tape.state.is_answered(speech, 13.4)
    assert not tape.state.is_settled(speech, 13.4)
    tape.done("r1", 13.5)
    assert tape.state.is_settled(speech, 13.5)
    tape.state.settle(speech)
    assert tape.of("first audio") == [(400, NONE)]


def test_pieces_with_only_words_are_no_audio(tape):
    tape.say(12.0, 13.0)
    tape.audio("r1", 13.4, length_s=0)
    assert tape.of("first audio") == []


def test_an_answer_to_a_part_of_a_turn_is_a_cut_off(tape):
    speech = tape.say(12.0, 14.0)
    tape.audio("r1", 13.0)
    tape.audio("r1", 13.1)
    assert tape.of("first audio") == [(None, CutOffError)]
    tape.on(protocol.Interrupted(turn=1, response_id="r1", played_ms=0, spoken_text=""), 13.5)
    assert not tape.state.is_answered(speech, 14.5)
    tape.audio("r2", 15.0, turn=2)
    assert tape.state.is_answered(speech, 15.0)
    tape.state.settle(speech)
    # The time to the answer of the rest is not counted.
    assert tape.of("first audio") == [(None, CutOffError)]


def test_the_rest_of_a_turn_that_was_cut_off_may_have_no_answer(tape):
    speech = tape.say(12.0, 14.0)
    tape.audio("r1", 13.0)
    tape.done("r1", 13.5)
    assert not tape.state.is_answered(speech, 14.5)
    assert tape.state.is_settled(speech, 17.5)


def test_a_turn_without_an_answer_is_counted_unless_it_needs_none(tape):
    tape.state.settle(tape.say(12.0, 13.0))
    assert tape.of("first audio") == [(None, NoAnswerError)]
    tape.state.settle(tape.say(14.0, 15.0, expects_answer=False))
    assert tape.of("first audio") == [(None, NoAnswerError)]


def test_a_late_answer_is_not_that_of_the_next_turn(tape):
    late = tape.say(12.0, 13.0)
    tape.state.settle(late)
    following = tape.say(40.0, 41.0)
    tape.audio("r1", 40.5)
    assert late.answer is not None
    assert following.early is None
    tape.audio("r2", 41.5, turn=2)
    assert tape.of("first audio") == [(None, NoAnswerError), (500, NONE)]


def test_gaps_and_underruns_come_from_arrivals_and_lengths(tape):
    tape.say(12.0, 13.0)
    tape.audio("r1", 14.0, 0.5)  # plays until 14.5
    tape.audio("r1", 14.1, 0.5)  # plays until 15.0
    tape.audio("r1", 15.3, 0.5)  # 300 ms too late; plays until 15.8
    tape.audio("r1", 15.9, 0.5)  # 100 ms too late
    assert tape.of("gap") == []
    tape.done("r1", 16.0)
    assert tape.of("gap") == [(1_200, NONE)]
    assert tape.of("underrun") == [(400, UnderrunError)]


def test_an_answer_that_comes_in_time_has_no_underrun(tape):
    tape.say(12.0, 13.0)
    for at_s in (14.0, 14.1, 14.5):
        tape.audio("r1", at_s, 0.25)
    tape.done("r1", 14.6)
    tape.done("r1", 14.6)
    assert tape.of("underrun") == [(0, NONE)]
    assert tape.of("gap") == [(400, NONE)]


@pytest.mark.parametrize(
    "event",
    [
        protocol.Paused(turn=1, response_id="r1", at_ms=0),
        protocol.ToolRequest(turn=1, call_id="c", name="get_weather", arguments={}),
    ],
)
def test_silence_that_the_server_meant_is_no_underrun(tape, event):
    tape.say(12.0, 13.0)
    tape.audio("r1", 14.0, 0.1)
    tape.on(event, 14.05)
    tape.audio("r1", 16.0, 0.1)
    tape.done("r1", 16.1)
    assert tape.of("underrun") == []
    assert tape.of("gap") == [(2_000, NONE)]


def interrupted(tape, *, paused_s=None, last_s=20.3):
    tape.say(12.0, 13.0)
    tape.audio("r1", 14.0, 5.0)
    tape.say(20.0, 20.6, expects_answer=False, over="r1", heard_ms=2_000.0)
    tape.audio("r1", last_s, 1.0)
    if paused_s is not None:
        tape.on(protocol.Paused(turn=1, response_id="r1", at_ms=0), paused_s)
    tape.on(protocol.Interrupted(turn=1, response_id="r1", played_ms=2_000, spoken_text=""), 20.9)


def test_an_interruption_counts_to_the_last_audio_and_to_silence(tape):
    interrupted(tape, paused_s=20.1)
    assert tape.of("interruption") == [(300, NONE)]
    assert tape.of("silence") == [(100, NONE)]
    assert tape.of("underrun") == []


def test_an_interruption_without_a_pause_before_it(tape):
    interrupted(tape)
    assert tape.of("silence") == [(900, NONE)]


def test_audio_that_had_all_come_before_the_onset_counts_nothing(tape):
    interrupted(tape, last_s=19.5)
    assert tape.of("interruption") == [(0, NONE)]


def test_a_pause_that_was_resumed_is_not_the_silence(tape):
    tape.say(12.0, 13.0)
    tape.audio("r1", 14.0, 5.0)
    tape.say(15.0, 16.0, over="r1", heard_ms=1_000.0)
    tape.on(protocol.Paused(turn=1, response_id="r1", at_ms=0), 15.1)
    tape.on(protocol.Resumed(turn=1, response_id="r1", reason="noise"), 15.2)
    tape.on(protocol.Interrupted(turn=1, response_id="r1", played_ms=0, spoken_text=""), 15.8)
    assert tape.of("silence") == [(800, NONE)]


@pytest.mark.parametrize(("heard_ms", "missed"), [(1_000.0, True), (4_500.0, False)])
def test_an_answer_that_goes_on_is_a_missed_interruption(tape, heard_ms, missed):
    tape.say(12.0, 13.0)
    tape.audio("r1", 14.0, 5.0)
    tape.done("r1", 14.1)
    stop = tape.say(15.0, 16.0, expects_answer=False, over="r1", heard_ms=heard_ms)
    tape.state.settle(stop)
    assert tape.of("interruption") == ([(None, MissedError)] if missed else [])


def test_an_error_before_the_connection_refuses_the_call():
    state = CallState(lambda _: None, 0.0)
    for code in ("too_many_sessions", "internal_error"):
        state.on_event(protocol.ErrorEvent(code=code, message="", retryable=True), 0.1)
    state.on_event(protocol.Closed(reason="failed"), 0.2)
    assert (state.connected, state.refusal, state.closed) == (False, "too_many_sessions", "failed")


def test_errors_of_a_call_that_goes_on_are_counted_by_code(tape):
    tape.on(protocol.ErrorEvent(code="audio_dropped", message="5 s", retryable=True), 11.0)
    assert tape.state.refusal == ""
    assert [repr(row.error) for row in tape.rows if row.name == "error"] == [
        repr(ServerError("audio_dropped"))
    ]
