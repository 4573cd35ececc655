"""The log of a call."""

from tapes import Tape, said

from parley import protocol
from parley_testing.log import transcript


def written(tape):
    return [f"{line.at_s:.1f} {line.who}: {line.text}" for line in transcript(tape.log)]


def test_log_of_a_call_is_in_order_with_reasons():
    tape = Tape()
    tape.act(said("set a timer for [700] ten minutes"), 1.0, 3.5)
    tape.add(2.0, protocol.Transcript(utterance=1, text="set a timer", is_final=False, confidence=0.5))
    tape.heard("set a time for", 2.0, 2.2, 2.3)
    tape.add(
        2.4,
        protocol.TurnDecision(
            utterance=1,
            decision="wait",
            reason="text_unfinished",
            text="set a time for",
            probability=0.9,
            cue="preposition",
            cue_words="for",
            silence_ms=240,
            needed_ms=2000,
        ),
    )
    again = protocol.Transcript(
        utterance=2, text="ten minutes", is_final=True, confidence=0.8, first=1, before="set a timer for"
    )
    tape.add(3.8, again)
    tape.decided(3.9, "set a timer for ten minutes")
    tape.add(4.0, protocol.ToolRequest(turn=1, call_id="c1", name="set_timer", arguments={"minutes": 10}))
    run = {"call_id": "c2", "name": "get_time", "arguments": {}, "is_error": False, "duration_ms": 1.0}
    tape.add(4.1, protocol.ToolRun(turn=1, **run))
    tape.speaks(1, 4.2, "okay ten minutes", done=False)
    tape.paused(1, 4.3, 4.4)
    tape.interrupted(1, 4.5, "okay")
    cue = "preposition: “for”"
    assert written(tape) == [
        "1.0 caller: 1. “set a timer for [700] ten minutes” (until 3.50 s)",
        "2.3 heard: “set a time for” (90%)",
        f"2.4 turn: wait (text_unfinished, 240 of 2000 ms, sounds 90% over, {cue}): “set a time for”",
        "3.8 heard: “ten minutes” (80%), and before it “set a timer for”",
        "3.9 turn: commit (text_finished, 0 of 0 ms): “set a timer for ten minutes”",
        "4.0 tool: set_timer({'minutes': 10})",
        "4.1 tool: get_time({})",
        "4.2 agent: “okay ten minutes”",
        "4.3 agent: paused",
        "4.4 agent: goes on (backchannel)",
        "4.5 agent: stopped (words) after “okay”",
    ]


def test_problems_are_at_their_place_in_the_log():
    tape = Tape()
    act = tape.act(said("cough", kind="sound"), 1.0, 1.2)
    act.problem = "no answer to speak over"
    tape.add(1.5, protocol.ErrorEvent(code="overloaded", message="full", retryable=True))
    tape.log.failure, tape.log.ended_s = "call_lost", 2.0
    assert written(tape) == [
        "1.0 caller: 1. cough (until 1.20 s): no answer to speak over",
        "1.5 trouble: overloaded: full",
        "2.0 trouble: call_lost",
    ]
