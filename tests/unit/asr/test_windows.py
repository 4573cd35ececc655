from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.asr.checkpoint import ParakeetConfig
from parley.asr.files.recording import EncoderWindow, WindowPlan
from parley.errors import ModelLoadingError

PLAN = WindowPlan.of(ParakeetConfig(), window_ms=1_600, left_ms=400, right_ms=240)


def test_a_stretch_that_fits_is_one_window():
    assert PLAN.longest == 160
    assert PLAN.windows(160) == [EncoderWindow(0, 160, 0, None)]
    assert PLAN.windows(0) == [EncoderWindow(0, 0, 0, None)]


def test_a_longer_one_is_encoded_with_context_on_both_sides():
    assert PLAN.windows(300) == [
        EncoderWindow(0, 120, 0, 12),
        EncoderWindow(56, 216, 5, 12),
        EncoderWindow(152, 300, 5, None),
    ]


@given(st.integers(0, 5_000))
def test_what_is_kept_is_the_whole_and_nothing_twice(frames):
    kept = []
    for window in PLAN.windows(frames):
        assert window.start % 8 == 0
        assert window.end - window.start <= PLAN.longest
        encoded = list(range(window.start // 8, -(-window.end // 8)))
        last = len(encoded) if window.kept is None else window.first + window.kept
        kept += encoded[window.first : last]
    assert kept == list(range(-(-frames // 8)))


@given(st.integers(161, 5_000))
def test_every_inner_cut_has_its_whole_context(frames):
    windows = PLAN.windows(frames)
    for before, after in pairwise(windows):
        cut = before.start + (before.first + before.kept) * 8
        assert before.end - cut == PLAN.right
        assert cut - after.start == min(PLAN.left, cut)


def test_contexts_that_leave_nothing_are_refused():
    with pytest.raises(ModelLoadingError, match="window_ms"):
        WindowPlan.of(ParakeetConfig(), window_ms=600, left_ms=400, right_ms=200)
