"""Expected phrases: their spellings, and what their tokens earn."""

import random

import numpy as np
import pytest

from parley.asr.decoding.boosting import (
    MAX_CHARACTERS,
    MAX_PHRASE_LENGTH,
    MAX_PHRASES,
    PhraseAutomaton,
    PhraseForest,
    build,
    compile_phrases,
    share,
)
from parley.errors import InvalidMessageError

TOKENS = 6


def walk(automaton, text):
    """What each token of a text earned, and the credit at its end."""
    forest = PhraseForest([automaton], TOKENS)
    row, state, earned = np.zeros(1, np.int64), np.zeros(1, np.int32), []
    for token in text:
        earned.append(float(forest.scores(row, state)[0, token]))
        state = forest.advance(row, state, np.array([token]))
    return earned, float(forest.credit(row, state)[0])


def worth(count):
    """What the first tokens of a phrase of weight 1 earn."""
    return float(count)


def test_a_phrase_earns_its_weight_for_every_token_and_keeps_it():
    earned, credit = walk(build([[1, 2, 3]], 2.0), [0, 1, 2, 3, 4])
    assert earned == pytest.approx([0, 2, 2, 2, 0])
    assert credit == 0


def test_boost_of_a_partial_phrase_is_taken_back():
    earned, credit = walk(build([[1, 2, 3]], 1.0), [1, 2, 4])
    assert earned[2] == pytest.approx(-worth(2))
    assert credit == 0
    _, credit = walk(build([[1, 2, 3]], 1.0), [1, 2])
    assert credit == pytest.approx(worth(2))


def test_a_finished_phrase_is_kept_when_a_longer_one_fails():
    for phrases, text in (([[1, 2], [1, 2, 3, 4]], [1, 2, 3, 0]), ([[2, 3], [1, 2, 3, 4]], [1, 2, 3, 0])):
        earned, _ = walk(build(phrases, 1.0), text)
        assert sum(earned) == pytest.approx(worth(2))


def test_a_failed_phrase_goes_on_as_one_that_its_end_begins():
    earned, _ = walk(build([[1, 2, 3], [2, 4]], 1.0), [1, 2, 4])
    assert sum(earned) == pytest.approx(worth(2))
    earned, _ = walk(build([[1, 1, 2]], 1.0), [1, 1, 1, 1, 2])
    assert sum(earned) == pytest.approx(worth(3))


def begun(phrases, text):
    """The longest end of a text that begins a phrase."""
    prefixes = {tuple(phrase[:count]) for phrase in phrases for count in range(len(phrase) + 1)}
    return next(tuple(text[at:]) for at in range(len(text) + 1) if tuple(text[at:]) in prefixes)


def test_credit_depends_on_nothing_but_the_longest_phrase_begun():
    rng = random.Random(3)
    for _ in range(60):
        phrases = [[rng.randrange(4) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(1, 6))]
        automaton = build(phrases, 1.0)
        text = [rng.randrange(5) for _ in range(12)]
        for end in range(len(text) + 1):
            longest = begun(phrases, text[:end])
            earned, credit = walk(automaton, text[:end])
            kept = max(
                (
                    worth(count)
                    for at in range(len(longest))
                    for count in range(1, len(longest) - at + 1)
                    if list(longest[at : at + count]) in phrases
                ),
                default=0.0,
            )
            assert credit == pytest.approx(max(worth(len(longest)) - kept, 0.0), abs=1e-5)
            if not any(text[at : at + len(p)] == p for p in phrases for at in range(end + 1 - len(p))):
                assert sum(earned) == pytest.approx(credit, abs=1e-4)


def test_rows_do_not_see_each_other():
    rng = random.Random(5)
    automata = [
        build([[rng.randrange(4) for _ in range(rng.randint(1, 5))] for _ in range(count)], 1.0 + count)
        for count in (3, 1, 6, 2)
    ]
    automata.insert(2, PhraseAutomaton.nothing())
    forest = PhraseForest(automata, TOKENS)
    alone = [PhraseForest([automaton], TOKENS) for automaton in automata]
    rows = np.array([4, 0, 2, 1, 3, 0], np.int64)
    states = np.zeros(len(rows), np.int32)
    visited = set()
    for _ in range(40):
        tokens = np.array([rng.randrange(5) for _ in rows])
        scores, credit = forest.scores(rows, states), forest.credit(rows, states)
        after = forest.advance(rows, states, tokens)
        for n, row in enumerate(rows):
            zero, state = np.zeros(1, np.int64), states[n : n + 1]
            # Looked up, with one subtraction each: no sum whose order could differ.
            assert np.array_equal(scores[n], alone[row].scores(zero, state)[0])
            assert credit[n] == alone[row].credit(zero, state)[0]
            assert after[n] == alone[row].advance(zero, state, tokens[n : n + 1])[0]
        states = after
        visited |= set(states.tolist())
    assert len(visited) > 5
    assert not scores[2].any()


def test_empty_phrases_boost_nothing():
    automaton = build([], 1.0)
    assert len(automaton.bonus) == 0
    assert walk(automaton, [0, 1, 2]) == ([0, 0, 0], 0)


def test_a_bonus_is_taken_from_other_tokens():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((5, TOKENS)).astype(np.float32)
    earned = np.zeros((5, TOKENS), np.float32)
    earned[:, 2] = [0.0, 1.0, 3.0, 9.0, 1.0]
    shared = share(scores, earned)
    before, after = np.exp(scores).sum(axis=1), np.exp(scores + shared).sum(axis=1)
    assert after == pytest.approx(before, rel=1e-5)
    assert (shared[1:, 2] > 0).all()
    assert (np.delete(shared[1:], 2, axis=1) < 0).all()
    assert not shared[0].any()


def test_retracted_boost_goes_to_no_other_token():
    scores = np.zeros((1, TOKENS), np.float32)
    assert np.array_equal(share(scores, scores - 2.0), scores - 2.0)


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


def test_unspellable_phrase_is_spelled_in_lower_case():
    lower, upper = (compile_phrases([text], 1.0, VOCABULARY) for text in ("hello", "HeLLo"))
    assert np.array_equal(lower.arcs, upper.arcs)


def test_a_spelling_that_only_some_method_finds_is_enough():
    # Merging ends with "ab" and "c", which is no token; the longest first with "▁a" and "bc".
    vocabulary = ("ab", "▁a", "bc", "▁", "a", "b", "<blk>")
    assert spellings(compile_phrases(["abc"], 1.0, vocabulary), vocabulary) == {("▁a", "bc")}


@pytest.mark.parametrize(("phrases", "weight"), [([], 1.0), (["hello"], 0.0)])
def test_no_phrases_need_no_boosting(phrases, weight):
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
