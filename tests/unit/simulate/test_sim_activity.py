from simulate.activity import Activity
from simulate.log import Sound

from parley import protocol


def final(text: str = "hello") -> protocol.Transcript:
    return protocol.Transcript(utterance=1, text=text, is_final=True, confidence=1.0)


def decision(kind) -> protocol.TurnDecision:
    return protocol.TurnDecision(utterance=1, decision=kind, reason="waited", text="hello")


def test_a_turn_from_its_first_sound_to_its_end():
    activity = Activity()
    assert not activity.busy
    activity.note(protocol.SpeechStarted(at_ms=0), 1.0)
    assert activity.busy
    activity.note(final(), 2.0)
    assert not activity.busy
    activity.note(decision("wait"), 2.1)
    assert activity.busy
    activity.note(decision("commit"), 2.5)
    activity.note(protocol.AgentState(state="processing"), 2.5)
    activity.note(protocol.ResponseText(turn=1, response_id="r1", text="Hi"), 2.6)
    activity.note(Sound(1, "r1", 0, 100), 2.7)
    activity.note(protocol.TurnMetrics(turn=1), 3.0)
    assert activity.busy
    activity.note(protocol.AgentState(state="listening"), 3.0)
    assert not activity.busy
    assert activity.idle_s(3.4) > 0.39
    assert activity.answered(2.6, 2.9)
    assert not activity.answered(2.6, 3.1)
    assert activity.response_began("r1") == 2.7


def test_a_turn_that_was_not_heard_answers_nothing():
    activity = Activity()
    activity.note(protocol.ResponseText(turn=1, response_id="r1", text="Hi"), 1.0)
    activity.note(protocol.TurnMetrics(turn=1), 2.0)
    assert not activity.busy
    assert not activity.answered(0.0, 0.0)


def test_an_answer_that_a_turn_interrupts_does_not_answer_it():
    activity = Activity()
    activity.note(Sound(1, "r1", 0, 100), 1.0)
    activity.note(protocol.TurnMetrics(turn=1, interrupted=True), 2.5)
    assert not activity.answered(2.0, 2.0)
    activity.note(Sound(2, "r2", 0, 100), 3.0)
    activity.note(protocol.TurnMetrics(turn=2), 4.0)
    assert activity.answered(2.0, 2.0)


def test_an_event_of_a_turn_that_is_over_does_not_open_it_again():
    activity = Activity()
    activity.note(protocol.TurnMetrics(turn=1), 1.0)
    activity.note(protocol.ResponseDone(turn=1, response_id="r1", audio_ms=0), 1.1)
    assert not activity.busy


def test_a_user_who_goes_on_is_heard_until_the_next_final_text():
    activity = Activity()
    activity.note(decision("wait"), 1.0)
    activity.note(decision("resume"), 1.2)
    assert activity.busy
    activity.note(final(), 2.0)
    assert not activity.busy


def test_something_else_may_keep_it_busy():
    activity = Activity()
    activity.busy_at(5.0)
    assert activity.idle_s(5.5) == 0.5
