"""Which spoken words stand for which written ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.tts.normalization.alignment import align


def pairs(written, spoken):
    return [(written[word.start : word.end], word.spoken) for word in align(written, spoken)]


@pytest.mark.parametrize(
    ("written", "spoken", "expected"),
    [
        ("", "", []),
        ("Hello there.", "Hello there.", [("Hello", "Hello"), ("there.", "there.")]),
        (
            "It costs $5.99 today.",
            "It costs five dollars ninety nine cents today.",
            [
                ("It", "It"),
                ("costs", "costs"),
                ("$5.99", "five dollars ninety nine cents"),
                ("today.", "today."),
            ],
        ),
        (
            "Jan. 5, 2024",
            "january fifth, twenty twenty four",
            [("Jan.", "january"), ("5,", "fifth,"), ("2024", "twenty twenty four")],
        ),
        ("So [laugh] yes", "So yes", [("So", "So"), ("[laugh]", ""), ("yes", "yes")]),
        ("a b", "a and b", [("a", "a and"), ("b", "b")]),
        ("b", "a b", [("b", "a b")]),
        ("...", "", [("...", "")]),
    ],
)
def test_examples(written, spoken, expected):
    assert pairs(written, spoken) == expected


@given(
    st.lists(st.text(alphabet="ab1$.", min_size=1, max_size=4), max_size=8),
    st.lists(st.text(alphabet="ab1$.", min_size=1, max_size=4), max_size=8),
)
def test_nothing_is_lost(written, spoken):
    words = align(" ".join(written), " ".join(spoken))
    assert [" ".join(written)[word.start : word.end] for word in words] == written
    if written:
        assert " ".join(word.spoken for word in words if word.spoken).split() == spoken
