"""τ-voice's definitions, and the first word that carries the answer."""

import pytest
from simulate.interaction import Interaction, add_call, first_carrying_s
from simulate.report import summary
from simulate.scores import score
from tapes import Tape, said

from parley.protocol import ToolRequest
from parley_testing.log import Sound
from parley_testing.turns import read_turns

LONG = " ".join(["word"] * 60)
"""Six seconds of speech."""


def scored(tape):
    scores = Interaction()
    add_call(scores, read_turns(tape.log))
    return scores


def others(at="idle+600"):
    return said("put it on the table", at, answered=False)


def silenced(tape, at):
    tape.interrupted(1, at, "word")


def test_response_latency_is_from_the_end_of_a_turn_to_the_next_sound():
    tape = Tape()
    tape.act(said("hello"), 1.0, 2.0)
    tape.speaks(1, 2.7, "hello you")
    tape.act(said("how are you"), 5.0, 6.0)
    tape.act(said("are you there"), 8.0, 9.0)
    tape.speaks(2, 9.3, "yes")
    scores = scored(tape)
    assert scores.response_s == pytest.approx([0.7, 0.3])
    assert (scores.unanswered.count, scores.unanswered.of) == (1, 3)
    assert "how are you" in scores.unanswered.cases[0]


def test_last_turn_without_an_answer_is_not_judged():
    tape = Tape()
    tape.act(said("goodbye"), 1.0, 2.0)
    assert scored(tape).unanswered.of == 0


def test_turn_that_ends_while_the_agent_speaks_has_no_response():
    tape = Tape()
    tape.act(said("what is [500] this"), 1.0, 3.0)
    tape.speaks(1, 2.0, LONG)
    scores = scored(tape)
    assert scores.unanswered.of == 0
    assert scores.not_yielded.of == 0  # the agent has interrupted, not the user


@pytest.mark.parametrize(("stop_s", "yields"), [(3.4, [0.4]), (4.9, [1.9]), (5.2, [])])
def test_interruption_is_yielded_to_within_two_seconds(stop_s, yields):
    tape = Tape()
    tape.speaks(1, 1.0, LONG, done=False)
    tape.act(said("wait a second", "agent+2000"), 3.0, 3.6, over="r1")
    silenced(tape, stop_s)
    scores = scored(tape)
    assert scores.yield_s == pytest.approx(yields)
    assert (scores.not_yielded.count, scores.not_yielded.of) == (1 - len(yields), 1)


@pytest.mark.parametrize(
    ("act", "name"),
    [
        (said("mhm", "agent+2000", kind="backchannel"), "backchannels"),
        (said("cough", "agent+2000", kind="sound"), "tics"),
        (others(), "others"),
    ],
)
def test_what_is_no_turn_is_to_be_talked_through_for_a_second(act, name):
    talked_through, stopped, late = Tape(), Tape(), Tape()
    for tape in (talked_through, stopped, late):
        tape.speaks(1, 1.0, LONG, done=False)
        tape.act(act, 3.0, 3.4, over="r1")
    silenced(stopped, 3.9)
    silenced(late, 4.2)
    counts = [(getattr(scored(tape), name).count) for tape in (talked_through, stopped, late)]
    assert counts == [0, 1, 0]
    assert all(getattr(scored(tape), name).of == 1 for tape in (talked_through, stopped, late))
    assert scored(stopped).not_yielded.of == 0


@pytest.mark.parametrize(("act", "name"), [(said("hmm", kind="sound"), "tics"), (others(), "others")])
@pytest.mark.parametrize(("answer_s", "count"), [(5.3, 1), (5.5, 0), (None, 0)])
def test_what_is_no_turn_is_not_to_be_answered_within_two_seconds(act, name, answer_s, count):
    tape = Tape()
    tape.act(act, 3.0, 3.4)
    if answer_s is not None:
        tape.speaks(1, answer_s, "pardon")
    share = getattr(scored(tape), name)
    assert (share.count, share.of) == (count, 1)


def test_sounds_of_the_room_and_backchannels_in_silence_are_not_judged():
    tape = Tape()
    tape.act(said("door", kind="sound"), 1.0, 1.3)
    tape.act(said("mhm", kind="backchannel"), 3.0, 3.3)
    tape.speaks(1, 3.5, "pardon")
    scores = scored(tape)
    assert scores.tics.of == scores.backchannels.of == scores.others.of == scores.unanswered.of == 0


@pytest.mark.parametrize(("resumed_s", "count"), [(3.35, 0), (3.9, 1)])
def test_agent_that_stands_still_for_less_than_a_step_has_talked_through(resumed_s, count):
    tape = Tape()
    tape.speaks(1, 1.0, LONG, done=False)
    tape.act(said("mhm", kind="backchannel"), 3.0, 3.4, over="r1")
    tape.paused(1, 3.2, resumed_s)
    share = scored(tape).backchannels
    assert (share.count, share.of) == (count, 1)


def test_pause_moves_the_end_of_an_answer():
    tape = Tape()
    tape.speaks(1, 1.0, " ".join(["word"] * 20), done=False)  # until 3.0, with the pause until 4.0
    tape.paused(1, 2.0, 3.0)
    tape.act(said("wait"), 3.8, 4.5)
    scores = scored(tape)
    assert scores.yield_s == pytest.approx([0.2])


def carrying_s(*sounds, answer="It is eight degrees."):
    tape = Tape()
    tape.speaks(1, 1.0, answer)
    (found,) = read_turns(tape.log).answers
    found.sounds = [(at, Sound(1, "r1", offset, length, text)) for at, offset, length, text in sounds]
    return first_carrying_s(found, "en")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("It is eight", 1.0),
        ("Sure! It is", 1.4),
        ("Okay, I see. It is", 2.2),
        ("Right now it is", 1.0),  # no mark behind it
        ("Yes.", 1.0),  # all of the answer
        ("Great, sure.", 1.4),
    ],
)
def test_acknowledgements_carry_nothing(words, expected):
    sounds = [(1.0, 400 * number, 400, word) for number, word in enumerate(words.split())]
    assert carrying_s(*sounds, answer=words) == pytest.approx(expected)


def test_filler_of_a_tool_carries_nothing():
    tape = Tape()
    tape.add(0.5, ToolRequest(turn=1, call_id="c", name="get_weather", arguments={}))
    tape.speaks(1, 1.0, "It is eight degrees.")
    (answer,) = read_turns(tape.log).answers
    spoken = ["One", "moment,", "please.", "It", "is", "eight", "degrees."]
    answer.sounds = [(1.0, Sound(1, "r1", 300 * at, 300, word)) for at, word in enumerate(spoken)]
    assert first_carrying_s(answer, "en") == pytest.approx(1.9)


def test_words_of_one_piece_are_spread_over_it_and_wait_for_it():
    assert carrying_s((1.0, 0, 1_000, "Sure! Go")) == pytest.approx(1.0 + 6 / 8)
    assert carrying_s((1.0, 0, 200, "Sure!"), (2.5, 200, 200, "Go")) == pytest.approx(2.5)


def test_answer_without_known_words_has_no_such_word():
    assert carrying_s((1.0, 0, 400, "")) is None


def test_scores_have_both_times_and_the_table_all_rows():
    tape = Tape()
    tape.act(said("hello there"), 1.0, 2.0)
    tape.heard("hello there", 1.98, 2.2, 2.25)
    tape.decided(2.3, "hello there")
    tape.speaks(1, 2.5, "Sure! It is eight")
    scores = score([tape.log])
    assert scores.latency == pytest.approx([500])
    assert scores.to_answer == pytest.approx([600])
    figures = summary(scores)
    assert figures["τ-voice: response latency, mean in s"] == "0.50 of 1"
    assert figures["τ-voice: turns answered"] == {"count": 1, "of": 1, "cases": []}
