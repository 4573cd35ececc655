"""How much of an answer was heard and is remembered."""

from __future__ import annotations

import pytest

from parley.agent.memory import ToolRound, remember
from parley.agent.playout import HeardSpeech, PlayedWord, Playout
from parley.chat import ToolCall

WORDS = [PlayedWord(0, 5, 0.0), PlayedWord(6, 12, 500.0)]


def spoken(*, complete=True):
    """ "Hello there." in one second, all of it sent at time 0."""
    playout = Playout()
    playout.begin(0, "Hello there.")
    playout.sent(1_000.0, WORDS, 0.0)
    if complete:
        playout.complete()
    return playout


@pytest.mark.parametrize(
    ("now", "text"),
    [(0.0, ""), (0.24, ""), (0.26, "Hello"), (0.74, "Hello"), (0.76, "Hello there."), (1.0, "Hello there.")],
)
def test_a_word_counts_once_half_of_it_was_played(now, text):
    assert spoken().heard(now).text.rstrip(".") == text.rstrip(".")


def test_playing_stands_still_while_there_is_nothing_to_play():
    playout = spoken()
    assert playout.played_ms(2.0) == 1_000
    playout.begin(0, "More.")
    playout.sent(1_000.0, [PlayedWord(0, 5, 0.0)], 3.0)
    assert playout.played_ms(3.5) == pytest.approx(1_500)


def test_marks_can_only_say_that_less_was_played():
    playout = spoken()
    playout.report(100, 0.5)
    assert playout.played_ms(0.5) == 100
    assert playout.played_ms(0.6) == pytest.approx(200)
    assert playout.played_ms(9.0) == pytest.approx(350)  # the clock helps out for a quarter of a second
    playout.report(50, 9.0)
    assert playout.played_ms(9.0) == pytest.approx(350)
    playout.report(5_000, 9.0)
    assert playout.played_ms(9.0) == 1_000


@pytest.mark.parametrize(("mark", "text"), [(-5_000, ""), (10**400, "Hello there.")])
def test_a_mark_that_cannot_be_true_counts_as_the_nearest_that_can(mark, text):
    playout = Playout()
    playout.begin(0, "Hello there.")
    playout.sent(1_000.0, [], 0.0)
    playout.complete()
    playout.report(mark, 1.0)
    heard = playout.heard(1.0)
    assert (heard.text, heard.played_ms) == (text, 1_000 if text else 0)


def test_heard_speech_is_split_by_tool_round():
    heard = HeardSpeech(500, ((0, "Let me see."), (1, "It is")))
    call = ToolCall(id="c", name="t", arguments={})
    rounds = [ToolRound("Let me see.", [call], {"c": "1"}), ToolRound("It is sunny.")]
    assert [(message.role, message.content) for message in remember(rounds, heard)] == [
        ("assistant", "Let me see."),
        ("tool", "1"),
        ("assistant", "It is…"),
    ]


def test_a_call_without_a_result_was_never_made():
    calls = [ToolCall(id=name, name="t", arguments={}) for name in "ab"]
    (asked, result) = remember([ToolRound("", calls, {"b": "2"})], None)
    assert [call.id for call in asked.tool_calls] == [result.tool_call_id] == ["b"]


def test_pause_plays_no_audio():
    playout = spoken()
    playout.pause(0.3)
    assert playout.played_ms(5.0) == pytest.approx(300)
    assert playout.heard(5.0).text == "Hello"
    assert not playout.finished(5.0)
    playout.resume(5.0)
    assert playout.played_ms(5.4) == pytest.approx(700)
    assert playout.finished(5.8)


def test_a_pause_after_the_end_takes_nothing_back():
    playout = spoken()
    playout.pause(1.5)
    playout.resume(2.0)
    assert playout.played_ms(2.0) == 1_000
    playout.begin(0, "More.")
    playout.sent(500.0, [], 3.0)
    assert playout.played_ms(3.2) == pytest.approx(1_200)


def test_a_mark_that_comes_during_a_pause_counts():
    playout = spoken()
    playout.pause(0.6)
    playout.report(450, 0.7)
    assert playout.played_ms(4.0) == 450
    playout.resume(4.0)
    assert 450 <= playout.played_ms(4.1) <= 550 + 1e-6


def test_segment_that_has_not_begun_was_not_heard():
    playout = spoken()
    playout.begin(0, "Nothing of this was made into audio.")
    assert playout.heard(0.9).text == "Hello there."
    assert playout.heard(1.5).text == "Hello there."


@pytest.mark.parametrize(
    ("text", "heard", "remembered"),
    [
        ("Hello there! \U0001f642", "Hello there!", "Hello there! \U0001f642"),
        ("One.  Two.", "One. Two.", "One.  Two."),
        ("One. Two.", "One.", "One…"),
        ("\U0001f642", "", None),
        ("One.", "", None),
    ],
)
def test_unspoken_text_is_not_missing(text, heard, remembered):
    messages = remember([ToolRound(text=text)], HeardSpeech(0, ((0, heard),) if heard else ()))
    assert [message.content for message in messages] == ([remembered] if remembered else [])
