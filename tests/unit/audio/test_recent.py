"""The last seconds of a stream."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parley.audio.buffer import AudioPiece, RecentAudio

CAPACITY = 50


def piece(start, length):
    """Samples whose value is their position."""
    return AudioPiece(np.arange(start, start + length, dtype=np.int16), start, 0.0)


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(0, 1000))
def test_last_audio_is_kept(lengths, position):
    recent = RecentAudio(CAPACITY)
    end = 0
    for length in lengths:
        recent.append(piece(end, length))
        end += length
        assert len(recent) < CAPACITY + 30
    first = max(position, end - CAPACITY, 0)
    assert recent.since(position).tolist() == list(range(first, end))


@given(st.integers(0, 120), st.integers(0, 120))
def test_the_end_may_be_left_out(position, until):
    recent = RecentAudio(CAPACITY)
    for start in range(0, 100, 10):
        recent.append(piece(start, 10))
    assert recent.since(position, until).tolist() == list(range(max(position, 50), min(until, 100)))


def test_a_gap_makes_it_forget_what_came_before():
    recent = RecentAudio(CAPACITY)
    recent.append(piece(0, 20))
    recent.append(piece(25, 10))
    assert recent.since(0).tolist() == list(range(25, 35))


def test_long_piece_is_cut():
    recent = RecentAudio(CAPACITY)
    recent.append(piece(0, 500))
    assert recent.since(0).tolist() == list(range(450, 500))
