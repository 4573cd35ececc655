"""The parts of ``pipecat-parley`` that need no pipeline."""

from __future__ import annotations

from pipecat_parley.final_texts import FinalTexts, Text
from pipecat_parley.missed_audio import MissedAudio

from parley.asr.messages import TranscriptEvent


def text(words, *, final=True):
    return TranscriptEvent(utterance=1, text=words, is_final=final)


def test_final_text_without_request_is_sent_at_once():
    finals = FinalTexts()
    assert finals.heard(text("a")) == [Text(text("a"))]
    assert finals.finalized() == []


def test_the_text_that_was_asked_for_is_the_last():
    finals = FinalTexts()
    finals.ask()
    assert finals.heard(text("a", final=False)) == [Text(text("a", final=False))]
    assert finals.heard(text("a")) == []
    assert finals.finalized() == [Text(text("a"), finalized=True)]
    assert finals.heard(text("b")) == [Text(text("b"))]


def test_second_of_two_final_texts_ends_the_turn():
    finals = FinalTexts()
    finals.ask()
    finals.heard(text("a"))
    assert finals.heard(text("b")) == [Text(text("a"))]
    assert finals.finalized() == [Text(text("b"), finalized=True)]


def test_second_question_before_the_answer_is_answered_too():
    finals = FinalTexts()
    finals.ask()
    finals.ask()
    assert finals.heard(text("a")) == []
    assert finals.finalized() == [Text(text("a"), finalized=True)]
    assert finals.heard(text("b")) == []
    assert finals.finalized() == [Text(text("b"), finalized=True)]
    assert finals.heard(text("c")) == [Text(text("c"))]


def test_empty_text_is_not_waited_for():
    finals = FinalTexts()
    finals.ask()
    finals.heard(text(""))
    assert finals.finalized() == []


def test_a_stream_that_breaks_loses_no_text():
    finals = FinalTexts()
    finals.ask()
    finals.heard(text("a"))
    assert finals.release() == [Text(text("a"))]
    finals.begin()
    assert finals.heard(text("b")) == [Text(text("b"))]


def test_only_the_latest_audio_is_kept():
    missed = MissedAudio(5)
    for piece in (b"aa", b"bb", b"cc"):
        missed.keep(piece)
    assert list(missed.take()) == [b"bb", b"cc"]
    missed.keep(b"ddddd")
    assert list(missed.take()) == [b"ddddd"]
    assert list(missed.take()) == []
