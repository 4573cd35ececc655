import numpy as np
import pytest

from parley.asr.decoding.boosting import (
    MAX_CHARACTERS,
    MAX_PHRASE_LENGTH,
    MAX_PHRASES,
    PhraseAutomaton,
    compile_phrases,
)
from parley.errors import InvalidMessageError

VOCABULARY = ("<unk>", "▁h", "el", "lo", "▁hello", "hel", "▁", "h", "e", "l", "o", "▁w", "<blk>")


def spellings(automaton, vocabulary=VOCABULARY):
    """All paths from outside the phrases to the end of one, as text."""
    children = {}
    for (state, token, target), bonus in zip(automaton.arcs.tolist(), automaton.bonus, strict=True):
        if bonus > 0 and target > state:
            children.setdefault(state, []).append((vocabulary[token], target))
    found, open_paths = set(), [((), 0)]
    while open_paths:
        path, state = open_paths.pop()
        if state and automaton.fallback[state] == 0:
            found.add(path)
        open_paths += [((*path, piece), target) for piece, target in children.get(state, [])]
    return found


def test_all_ways_to_spell_a_word_are_boosted():
    # As learned: "▁h" first, then "el", "lo". The fewest and the longest: one token.
    assert spellings(compile_phrases(["hello"], 1.0, VOCABULARY)) == {("▁h", "el", "lo"), ("▁hello",)}


def test_words_of_a_phrase_follow_one_another():
    assert spellings(compile_phrases([" hello  ho "], 1.0, VOCABULARY)) == {
        ("▁h", "el", "lo", "▁h", "o"),
        ("▁hello", "▁h", "o"),
    }


def test_what_cannot_be_spelled_as_written_is_spelled_in_lower_case():
    lower, upper = (compile_phrases([text], 1.0, VOCABULARY) for text in ("hello", "HeLLo"))
    assert np.array_equal(lower.arcs, upper.arcs)


def test_a_spelling_that_only_some_method_finds_is_enough():
    # Merging ends with "ab" and "c", which is no token; the longest first with "▁a" and "bc".
    vocabulary = ("ab", "▁a", "bc", "▁", "a", "b", "<blk>")
    assert spellings(compile_phrases(["abc"], 1.0, vocabulary), vocabulary) == {("▁a", "bc")}


@pytest.mark.parametrize(("phrases", "weight"), [([], 1.0), (["hello"], 0.0)])
def test_nothing_to_boost(phrases, weight):
    automaton = compile_phrases(phrases, weight, VOCABULARY)
    assert len(automaton.bonus) == len(PhraseAutomaton.nothing().bonus) == 0


@pytest.mark.parametrize(
    ("phrases", "weight", "message"),
    [
        (["xyz"], 1.0, "xyz"),
        (["<unk>"], 1.0, "never writes"),
        ([""], 1.0, "0 characters"),
        (["  "], 1.0, "2 characters"),
        (["h" * (MAX_PHRASE_LENGTH + 1)], 1.0, "65 characters"),
        (["h"] * (MAX_PHRASES + 1), 1.0, "201 phrases"),
        (["hello hello hello hello"] * (MAX_CHARACTERS // 23 + 1), 1.0, "4000 characters"),
        (["hello"], -0.1, "phrase_weight"),
        (["hello"], 10.5, "phrase_weight"),
        (["hello"], float("nan"), "phrase_weight"),
    ],
)
def test_phrases_that_cannot_be_taken_are_refused(phrases, weight, message):
    with pytest.raises(InvalidMessageError, match=message):
        compile_phrases(phrases, weight, VOCABULARY)


def test_the_most_that_is_accepted_is_small(export):
    letters = "etaoinshrdlu"
    phrases = [
        "".join(letters[(n * 7 + k * (n % 5 + 1)) % 12] for k in range(20)) for n in range(MAX_PHRASES)
    ]
    automaton = compile_phrases(phrases, 1.0, export.vocabulary)
    assert automaton.arcs.nbytes + automaton.bonus.nbytes + automaton.fallback.nbytes < 1_000_000
