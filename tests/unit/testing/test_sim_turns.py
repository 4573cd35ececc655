import re

import pytest
from tapes import Tape, said

from parley.protocol import ToolRequest
from parley_testing.devices import AudioEntry
from parley_testing.matching import call_matches
from parley_testing.scenario import ExpectedCall
from parley_testing.turns import check_history, plain_text_words, read_turns

TEXT = "Once upon a time there was a robot"


def problem(tape: Tape) -> str:
    return check_history(read_turns(tape.log))[1]


def story_tape(**options) -> Tape:
    tape = Tape()
    tape.act(said("tell me a story"), 1.0, 2.0)
    tape.speaks(1, 2.5, TEXT, **options)
    return tape


def test_a_whole_answer_that_was_heard():
    assert problem(story_tape()) == ""


def test_a_whole_answer_of_which_something_was_not_heard():
    assert "100 ms of it were not heard" in problem(story_tape(heard_ms=700))


def test_words_that_were_never_sent_or_sent_twice():
    tape = story_tape()
    del tape.log.ledger["r1"].entries[-1]
    assert "was sent" in problem(tape)
    tape = story_tape()
    tape.log.ledger["r1"].entries.append(AudioEntry(800, 100, "robot"))
    assert "was sent" in problem(tape)


def test_audio_that_jumps():
    tape = story_tape()
    entries = tape.log.ledger["r1"].entries
    entries[3] = AudioEntry(400, 100, "time")
    assert "jumps from 300 to 400" in problem(tape)


@pytest.mark.parametrize(
    ("spoken", "wrong"),
    [
        ("Once", True),
        ("Once upon", False),
        ("Once upon a", False),
        ("Once upon a time", False),
        ("Once upon a time there", True),
        ("", True),
        ("Once a time", True),
        (TEXT, True),
    ],
)
def test_a_cut_is_known_to_a_piece(spoken, wrong):
    # 350 ms were heard: "once upon a" and half of the piece in which "time" begins. Of "a" it is not known
    # how much was heard.
    tape = story_tape(done=False, heard_ms=350)
    tape.interrupted(1, 3.0, spoken)
    assert bool(problem(tape)) == wrong


def test_wrong_memory_is_reported():
    tape = story_tape(done=False, heard_ms=350)
    tape.interrupted(1, 3.0, TEXT)
    assert "'there was a robot', which was not heard" in problem(tape)
    tape = story_tape(done=False, heard_ms=750)
    tape.interrupted(1, 3.0, "Once upon")
    assert "does not remember 'a time there was', which was heard" in problem(tape)


def test_phrase_during_a_tool_is_not_remembered():
    tape = story_tape()
    entries = tape.log.ledger["r1"].entries
    filler = [
        AudioEntry(100 * number, 100, word) for number, word in enumerate(("One", "moment,", "please."))
    ]
    tape.log.ledger["r1"].entries = filler + [AudioEntry(e.offset_ms + 300, 100, e.text) for e in entries]
    tape.log.ledger["r1"].heard_ms += 300
    assert "was sent" in problem(tape)
    tape.add(2.4, ToolRequest(turn=1, call_id="c", name="get_story", arguments={}))
    assert problem(tape) == ""
    tape.interrupted(1, 3.0, "Once upon a")
    assert "does not remember" in problem(tape)
    tape.log.ledger["r1"].heard_ms = 650
    assert problem(tape) == ""


def test_words():
    assert plain_text_words("It's 15:52, isn't it? “Yes”…") == ["it's", "15:52", "isn't", "it", "yes"]


def test_calls_match_by_name_and_all_arguments():
    def call(**arguments):
        return ToolRequest(turn=1, call_id="c", name="get_weather", arguments=arguments)

    expected = ExpectedCall("get_weather", {"city": "Paris", "day": "monday"})
    assert call_matches(expected, call(city="paris", day="Monday"))
    assert not call_matches(expected, call(city="Paris"))
    assert not call_matches(expected, call(city="Paris", day="monday", unit="K"))
    assert not call_matches(ExpectedCall("get_time", {"city": "Paris"}), call(city="Paris"))
    assert call_matches(ExpectedCall("get_weather", {"n": 10}), call(n="10", other=None))
    for wanted in ("half past one", "Half-past one", re.compile("half past (one|two)")):
        assert call_matches(ExpectedCall("get_weather", {"at": wanted}), call(at="half-past one"))
    assert not call_matches(ExpectedCall("get_weather", {"at": "1-2"}), call(at="1 2"))
