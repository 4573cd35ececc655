"""Turns without end-of-turn detection."""

from parley.turns.every_pause import EndTurn, EveryPause


def test_transcript_after_a_pause_ends_the_turn():
    policy = EveryPause()
    assert policy.on_speech_started(1.0) == []
    assert not policy.pending
    assert policy.on_speech_stopped(2.0, 2.3) == []
    assert policy.pending
    assert policy.on_transcript(1, " hello ", 2.4) == [EndTurn("hello")]
    assert not policy.pending


def test_end_requested_before_the_text_waits_for_it():
    policy = EveryPause()
    policy.on_speech_stopped(2.0, 2.3)
    assert policy.end(2.3) == []
    policy.on_transcript(1, "hello", 2.4)
    assert policy.end(2.5) == [EndTurn("")]


def test_late_transcript_without_a_pause_is_a_turn_too():
    policy = EveryPause()
    assert policy.on_transcript(1, "hello", 2.4) == [EndTurn("hello")]
    assert not policy.pending
