import os
from dataclasses import replace

import numpy as np
import pytest

from parley_testing import voices
from parley_testing.scenario import ScenarioError
from parley_testing.voices import ESPEAK, Line, LineCache, Spoken

CAST = replace(ESPEAK, weights=("network",))
LINES = [Line("hello", "woman-1"), Line("hello", "man-1"), Line("hello", "man-1", 0.9)]


@pytest.fixture(autouse=True)
def spoken(tmp_path, monkeypatch):
    """What was spoken, not read; weights are there."""
    (tmp_path / "weights" / "network").mkdir(parents=True)
    (tmp_path / "weights" / "network" / "graph").write_bytes(b"1")
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path / "weights"))
    said = []

    def speak(lines, cast):
        said.extend(lines)
        return {
            line: Spoken(np.arange(4, dtype=np.int16), ((0, len(line.text)),), cast.marks) for line in lines
        }

    monkeypatch.setattr(voices, "speak_all", speak)
    return said


def test_a_line_is_spoken_once(tmp_path, spoken):
    kept = LineCache(CAST, tmp_path / "lines")
    assert kept.missing([*LINES, *LINES]) == LINES
    first = kept.speak(LINES)
    assert spoken == LINES
    again = LineCache(CAST, tmp_path / "lines")
    assert again.missing(LINES) == []
    second = again.speak(LINES)
    assert spoken == LINES
    for line in LINES:
        np.testing.assert_array_equal(first[line].samples, second[line].samples)
        assert (first[line].words, first[line].marks) == (second[line].words, second[line].marks)


def test_other_weights_or_voices_speak_it_again(tmp_path, spoken):
    LineCache(CAST, tmp_path / "lines").speak(LINES)
    other = replace(CAST, voices={**CAST.voices, "man-1": "somebody"})
    assert LineCache(other, tmp_path / "lines").missing(LINES) == LINES[1:]
    (tmp_path / "weights" / "network" / ".note").write_bytes(b"2")
    assert LineCache(CAST, tmp_path / "lines").missing(LINES) == []
    (tmp_path / "weights" / "network" / "graph").write_bytes(b"2")
    LineCache(CAST, tmp_path / "lines").speak(LINES)
    assert spoken == LINES + LINES


def test_half_a_file_is_as_good_as_none(tmp_path, spoken):
    kept = LineCache(CAST, tmp_path / "lines")
    kept.speak(LINES[:1])
    (path,) = (tmp_path / "lines").iterdir()
    path.write_bytes(path.read_bytes()[:50])
    assert np.array_equal(kept.speak(LINES[:1])[LINES[0]].samples, np.arange(4))
    assert spoken == [LINES[0], LINES[0]]


def test_least_recently_used_lines_are_dropped(tmp_path):
    kept = LineCache(CAST, tmp_path / "lines", most=2)
    kept.speak(LINES[:2])
    for path in (tmp_path / "lines").iterdir():
        os.utime(path, (1, 1))
    kept.speak(LINES[1:2])
    kept.speak(LINES[2:])
    assert kept.missing(LINES) == LINES[:1]


def test_weights_that_are_missing_are_named(tmp_path):
    with pytest.raises(ScenarioError, match=r"weights/other is missing; .*MODEL=other"):
        LineCache(replace(CAST, weights=("other",)), tmp_path / "lines")
