"""The measurement of turns in recordings of people, with fakes for the networks."""

from __future__ import annotations

import numpy as np
import pytest
from turns_people import Silence, all_later, find_silences, label_silences, read_settings, row_of

from parley.errors import InvalidMessageError
from parley.turns.settings import PRESETS
from parley.turns.sweep import Frontier, LabelledPause, OperatingPoint

MS = 16


class Vad:
    def detect(self, windows, counts, state, context):
        assert counts.tolist() == [windows.shape[1]]
        return np.abs(windows).max(axis=2), state, context


class Network:
    def __init__(self):
        self.heard = []

    def score(self, speech):
        (piece,) = speech
        self.heard.append(len(piece) / MS)
        return np.array([len(piece) / MS / 10_000], np.float32)


def audio(*parts_ms):
    """Speech and silence in turn, in windows of 32 ms."""
    levels = [
        np.full(length * MS, 30_000 if number % 2 == 0 else 0) for number, length in enumerate(parts_ms)
    ]
    return np.concatenate(levels).astype(np.int16)


def test_silences_are_the_pauses_after_speech_and_the_last_has_no_end():
    found = find_silences(Vad(), audio(640, 320, 960, 64, 640, 1_600))
    assert found == [Silence(640 * MS, 960 * MS), Silence(2_624 * MS, None)]  # 64 ms are no pause


def test_recording_without_speech_has_no_pauses():
    assert find_silences(Vad(), np.zeros(16_000, np.int16)) == []


def test_pauses_are_scored_by_what_was_heard_until_then():
    network, texts = Network(), []

    def transcribe(piece):
        texts.append(len(piece) / MS)
        return "a table for"

    silences = [Silence(1_000 * MS, 1_350 * MS), Silence(3_000 * MS, None)]
    swept, served = label_silences(np.zeros(5_000 * MS, np.int16), silences, network, transcribe)
    assert [one.is_end for one in swept] == [False, True]
    assert swept[0].length_ms == 350
    assert [at for at, _ in swept[0].scores] == [100, 200, 300]
    assert [at for at, _ in swept[1].scores] == list(range(100, 1_601, 100))
    assert swept[0].scores[1][1] == pytest.approx(0.12)
    assert max(network.heard[:4]) == 1_300
    assert [(one.scores[0][0], one.ready_ms, one.cue.kind) for one in served] == [
        (160, 160, "preposition")
    ] * 2
    assert served[0].scores[0][1] == pytest.approx(0.116)
    assert texts == [1_160, 3_160]


def test_options_of_a_session_are_read_as_its_own():
    assert read_settings([]) == PRESETS["normal"]
    assert read_settings(["eagerness=patient", "complete_ms=700"]).complete_ms == 700
    assert read_settings(["eagerness=patient"]).threshold == 0.7


@pytest.mark.parametrize(
    "given", ["patience=3", "threshold=2", "complete_ms=soon", "complete_ms", "eagerness=off"]
)
def test_options_that_no_session_takes_are_refused(given):
    with pytest.raises(InvalidMessageError):
        read_settings([given])


def test_row_has_a_mark_where_a_budget_cannot_be_kept():
    frontier = Frontier([OperatingPoint(None, 0.25, 400.0), OperatingPoint(None, 0.1, 900.0)])
    assert row_of("one", frontier) == ["one", "-", "25.0%", "25.0%", "-", f"{frontier.area:.3f}"]


def test_all_silences_are_longer_by_what_the_delay_allows():
    end, hold = (LabelledPause(is_end, length_ms=450, scores=((160, 0.9),)) for is_end in (True, False))
    found = all_later([end, hold], PRESETS["normal"], 298)
    assert (found.policy.complete_ms, found.delay_ms, found.cut_offs) == (295, 295, 1.0)
