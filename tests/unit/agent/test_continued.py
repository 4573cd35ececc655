"""Where the speech of a response has stopped."""

from __future__ import annotations

import pytest

from parley.agent.continued import find_begun
from parley.agent.memory import UNREMEMBERED
from parley.chat import ToolCall
from parley.checkpoint import AgentTurnState, ResponseProgress, RoundState

TEXT = "Let me think. It's 10:30, and - well - you should go now, Anna!"


def answer(*rounds: RoundState) -> AgentTurnState:
    return AgentTurnState(turn=1, response_id="r", rounds=list(rounds))


def progress(text: str, *words: tuple[int, str], audio_ms: int | None = None, **fields) -> ResponseProgress:
    length_ms = (words[-1][0] + 1_000 if words else 0) if audio_ms is None else audio_ms
    return ResponseProgress(response_id="r", text=text, words=list(words), audio_ms=length_ms, **fields)


def left(begun) -> str:
    return "".join(text for _, text in begun.left).strip()


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        ([], TEXT),
        ([(0, "Let"), (200, "me")], "think. It's 10:30, and - well - you should go now, Anna!"),
        ([(0, "Let me"), (200, "think. It's")], "10:30, and - well - you should go now, Anna!"),
        ([(0, "Let me think."), (500, "Its"), (600, "10:30,")], "and - well - you should go now, Anna!"),
        ([(0, "Let me think. It's 10:30, and"), (900, "-"), (900, "well")], "- you should go now, Anna!"),
        ([(0, TEXT)], ""),
    ],
)
def test_words_are_found_without_space_and_punctuation(words, rest):
    assert left(find_begun(answer(), progress(TEXT, *words))) == rest


def test_a_word_that_is_longer_than_a_segment_goes_on_within():
    word = "ab" * 100
    text = f"Look at {word} and go."
    pieces = [(0, "Look at"), (400, word[:80]), (6_000, word[80:160])]
    begun = find_begun(answer(), progress(text, *pieces, audio_ms=11_000))
    assert left(begun) == f"{word[160:]} and go."
    assert begun.spoken[0].text == f"Look at {word[:160]}"
    begun = find_begun(answer(), progress(text, *pieces, audio_ms=6_500))
    assert left(begun) == f"{word[80:]} and go.", "a piece that was cut is spoken again"
    begun = find_begun(answer(), progress(text, *pieces, (11_300, word[160:]), (13_500, "and")))
    assert left(begun) == "go."


def test_words_of_a_filler_are_left_out():
    words = [(0, "One moment,"), (400, "please."), (1_200, "Let"), (1_400, "me")]
    begun = find_begun(answer(), progress(TEXT, *words))
    assert left(begun).startswith("think.")
    (spoken,) = begun.spoken
    assert (spoken.text, spoken.begin_ms) == ("Let me", 1_200)
    assert [word.at_ms for word in spoken.words] == [0, 200]


def test_a_filler_is_not_taken_for_the_beginning_of_a_word():
    begun = find_begun(answer(), progress("Letters from me.", (0, "Let"), (100, "me"), (200, "check.")))
    assert left(begun) == "Letters from me."


def test_words_without_a_mark_are_passed_over():
    begun = find_begun(
        answer(), progress("One two three four five.", (0, "One"), (600, "three"), (900, "four"))
    )
    assert left(begun) == "five."


def test_a_word_that_was_cut_is_spoken_again():
    begun = find_begun(
        answer(), progress("An appointment on Monday.", (0, "An"), (200, "appointment"), audio_ms=400)
    )
    assert left(begun) == "appointment on Monday."
    assert begun.spoken[0].text == "An"


def test_without_marks_the_place_is_estimated():
    text = "This is a sentence without any marks, and it goes on for quite some time."
    begun = find_begun(answer(), progress(text, audio_ms=2_000))
    assert left(begun) == "marks, and it goes on for quite some time."
    assert find_begun(answer(), progress(text, audio_ms=60_000)).left == ()


def test_each_round_has_its_part():
    call = ToolCall(id="c", name="look", arguments={})
    rounds = RoundState(text="Let me look. ", said=True, calls=[call], results={"c": "1"})
    text = "Let me look. It is one."
    begun = find_begun(answer(rounds), progress(text, (0, "Let"), (300, "me")))
    assert begun.left == ((0, " look."), (1, " It is one."))
    assert begun.text == "It is one."
    assert not begun.over
    begun = find_begun(answer(rounds), progress(text, (0, "Let me look."), (900, "It")))
    assert [(one.round_number, one.text) for one in begun.spoken] == [(0, "Let me look."), (1, "It")]
    assert begun.left == ((1, " is one."),)


def test_an_answer_that_was_written_is_over():
    rounds = RoundState(text="It is one.", said=True)
    begun = find_begun(answer(rounds), progress("It is one.", (0, "It")))
    assert begun.over
    assert begun.left == ((0, " is one."),)
    assert find_begun(answer(rounds), None).left == ((0, "It is one."),)


@pytest.mark.parametrize(
    ("cut", "shown", "rest"),
    [("It is one.…", "It is one. And tw", " one."), ("It is one…", "It is one two", " one")],
)
def test_end_of_an_answer_cut_at_max_tokens_is_not_spoken(cut, shown, rest):
    begun = find_begun(answer(RoundState(text=cut, said=True)), progress(shown, (0, "It"), (200, "is")))
    assert (begun.over, begun.cut, begun.text) == (True, True, "")
    assert begun.left == ((0, rest),)


def test_an_answer_that_ends_in_dots_was_not_cut():
    begun = find_begun(answer(RoundState(text="It is…", said=True)), progress("It is…", (0, "It is…")))
    assert (begun.over, begun.cut, begun.text, begun.left) == (True, False, "", ())


def test_a_response_that_was_sent_is_done():
    begun = find_begun(answer(), progress("It is one.", (0, "It is"), (200, "one."), audio_ms=220, done=True))
    assert (begun.over, begun.done, begun.left) == (True, True, ())
    assert begun.spoken[0].text == "It is one."


def test_an_apology_ends_an_answer():
    begun = find_begun(answer(), progress("It is. Sorry, again.", (0, "It")), ("Sorry, again.",))
    assert begun.over
    assert begun.text == "It is."
    assert begun.left == ((0, " is."), (UNREMEMBERED, "Sorry, again."))


def test_a_fixed_text_and_another_response():
    say = AgentTurnState(turn=1, response_id="r", kind="say", text="Hello there.", remember=False)
    begun = find_begun(say, progress("Hello there.", (0, "Hello")))
    assert begun.left == ((UNREMEMBERED, " there."),)
    other = ResponseProgress(response_id="other", text="Hm.", audio_ms=100)
    assert not find_begun(say, other).written


def test_many_equal_words_take_no_time():
    text = "a " * 8_000
    begun = find_begun(answer(), progress(text, *((index, "a b a b") for index in range(2_000))))
    assert begun.left


@pytest.mark.parametrize("text", ["", " ", "…", "ß", "İ", "你好。我是帕利。"])
def test_any_text_is_possible(text):
    begun = find_begun(answer(), progress(text, (0, text), (0, ""), (0, "x")))
    assert "".join(one.text for one in begun.spoken) + left(begun) in (text, text.strip())


MARKED = "See [our **opening** hours](https://example.com/a/b/c/d), or **call** us."


def test_words_behind_a_link_are_found_without_its_target():
    words = [(0, "See our opening"), (600, "hours,"), (900, "or")]
    begun = find_begun(answer(), progress(MARKED, *words))
    assert left(begun) == "**call** us."
    begun = find_begun(answer(), progress(MARKED, *words[:2]))
    assert left(begun) == "or **call** us."


def test_last_word_with_a_link_is_as_long_as_it_is_spoken():
    begun = find_begun(answer(), progress(MARKED, (0, "See our opening"), (600, "hours,"), audio_ms=950))
    assert left(begun) == "or **call** us."
