"""Talk behind the caller."""

from __future__ import annotations

import numpy as np
import pytest

from parley.vad.background import TALK, BackgroundTalk

MURMUR = [-36.0, -34.0, -38.0, -35.0, -33.0, -37.0]
"""Levels of many who talk at once, in windows (dB below full scale)."""
WORDS = [-24.0, -22.0, -26.0, -21.0, -36.0, -35.0, -23.0]
SILENT = [-24.0, -22.0, -26.0, -21.0, -60.0, -60.0, -23.0]


def hear(talk, levels, probability=0.9, speaking=True):
    return [talk.hear(10 ** (level / 10), probability, speaking=speaking) for level in levels]


def repeated(levels, count):
    return list(np.resize(levels, count))


def test_talk_that_never_pauses_is_silence_after_a_while():
    heard = hear(BackgroundTalk(), repeated(MURMUR, 3 * TALK))
    assert heard[: TALK - 1] == [0.9] * (TALK - 1)
    assert heard[TALK - 1 :] == [0.0] * (2 * TALK + 1)


def test_caller_is_heard_over_talk_and_its_end_is_silence():
    talk = BackgroundTalk()
    hear(talk, repeated(MURMUR, 2 * TALK))
    begun = hear(talk, repeated(WORDS, 3), speaking=False)
    assert begun[-1] == 0.9
    assert hear(talk, repeated(WORDS, 60)) == [0.9] * 60
    assert hear(talk, repeated(MURMUR, 12))[-6:] == [0.0] * 6


@pytest.mark.parametrize("levels", [SILENT, [-24.0] * 8 + [-58.0] * 2])
def test_voice_with_silence_between_its_words_is_never_changed(levels):
    assert hear(BackgroundTalk(), repeated(levels, 4 * TALK)) == [0.9] * 4 * TALK


@pytest.mark.parametrize(("level", "heard"), [(-38.0, 0.0), (-60.0, 0.9)])
def test_talk_is_remembered_until_there_is_silence(level, heard):
    talk = BackgroundTalk()
    hear(talk, repeated(MURMUR, 2 * TALK))
    assert hear(talk, [level] * 4, probability=0.1) == [0.1] * 4
    assert hear(talk, repeated(MURMUR, TALK - 1)) == [heard] * (TALK - 1)


def test_talk_is_forgotten_where_nobody_has_talked_for_long():
    talk = BackgroundTalk()
    hear(talk, repeated(MURMUR, 2 * TALK))
    hear(talk, [-36.0] * 2 * TALK, probability=0.1)
    assert hear(talk, MURMUR) == [0.9] * 6


def test_fork_is_independent():
    talk = BackgroundTalk()
    hear(talk, repeated(MURMUR, TALK - 1))
    twin = talk.fork()
    assert hear(twin, MURMUR) == [0.0] * 6
    assert hear(talk, MURMUR, probability=0.1) == [0.1] * 6
    assert hear(talk, MURMUR) == [0.9] * 6
    assert hear(twin, MURMUR) == [0.0] * 6
