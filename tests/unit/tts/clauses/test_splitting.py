"""Where a text is cut into clauses."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.tts.clauses.splitting import ClauseLimits, split_clauses
from parley.tts.english.pronouncer import PronouncedWord


def words_of(text):
    """A word sounds as it is written."""
    words = []
    for match in re.finditer(r"\S+", text):
        bare = match[0].rstrip(".,!?;:")
        words.append(PronouncedWord(bare, bare, match.start(), match.end(), "", match[0][len(bare) :]))
    return words


def cut(text, limits=None):
    return [
        " ".join(word.phonemes + word.after for word in clause)
        for clause in split_clauses(words_of(text), limits)
    ]


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("Hello, how are you doing today?", ["Hello, how are you doing today?"]),
        (
            "I can help you with that, but I need your name first.",
            ["I can help you with that,", "but I need your name first."],
        ),
        (
            "Your table is booked for two people and the garden door is open until ten.",
            ["Your table is booked for two people", "and the garden door is open until ten."],
        ),
        (
            "That is right. It opens at nine in the morning.",
            ["That is right. It opens", "at nine in the morning."],
        ),
        (
            "We open at nine. We close at five. On Sundays the whole shop is closed all day.",
            ["We open at nine.", "We close at five. On Sundays the whole shop is closed all day."],
        ),
        ("", []),
        ("Yes.", ["Yes."]),
    ],
)
def test_long_text_is_cut_at_possible_pauses(text, clauses):
    assert cut(text) == clauses


def test_whole_sentences_are_cut_only_where_they_are_too_long():
    limits = ClauseLimits(words=((3, 6),), by_sentence=True)
    clauses = split_clauses(
        words_of("Yes. We are open now. One two three four, five six seven eight nine."), limits
    )
    said = [" ".join(word.text for word in clause) for clause in clauses]
    assert said == ["Yes", "We are open now", "One two three four", "five six seven eight nine"]


def test_a_full_stop_within_a_word_ends_no_sentence():
    version = [PronouncedWord("two", "tu", 0, 3, "", "."), PronouncedWord("zero", "zO", 0, 3)]
    assert split_clauses(version, ClauseLimits(by_sentence=True)) == [version]


def test_only_the_first_clause_of_a_text_is_a_small_one():
    words = words_of("one two three four, five six seven eight nine ten eleven twelve")
    assert len(split_clauses(words)[0]) == 4
    assert len(split_clauses(words, before=5)[0]) == 12


def test_words_said_for_one_number_are_no_place_to_cut():
    number = [PronouncedWord("in", "in", 14, 17) for _ in range(3)]
    clauses = split_clauses([*words_of("one two three"), *number, *words_of("a b c d e f g")])
    assert [word.text for word in clauses[0]] == ["one", "two", "three", "in", "in", "in", "a"]


@given(st.lists(st.sampled_from(["a", "and", "in", "word,", "end.", "x" * 90, "y" * 700]), max_size=80))
def test_clauses_keep_the_text_within_their_length(pieces):
    limits = ClauseLimits()
    words = words_of(" ".join(pieces))
    clauses = split_clauses(words, limits)
    assert all(clauses)
    joined = "".join(word.phonemes for clause in clauses for word in clause)
    assert joined == "".join(word.phonemes for word in words)
    for number, clause in enumerate(clauses):
        _, most = limits.words[min(number, 2)]
        assert len(clause) < most + limits.rest
        assert len(" ".join(word.phonemes + word.after for word in clause)) <= limits.phonemes
    starts = [word.start for clause in clauses for word in clause]
    assert starts == sorted(starts)
