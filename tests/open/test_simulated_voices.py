"""Simulated callers speak with Kokoro's real weights."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parents[2] / "perf"))

from parley_testing.rendering import put_between
from parley_testing.scenario import Pause, ScenarioError, parse_sentence
from parley_testing.sounds import SOUNDS
from parley_testing.voices import KOKORO, RATE, Line, models_folder, speak_all

MODELS = models_folder()
MISSING = [name for name in KOKORO.weights if not (MODELS / name).is_dir()]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no weights in {MODELS}: {', '.join(MISSING)}")
SENTENCE = parse_sentence("What is the capital of [500] France?", SOUNDS)


@pytest.fixture(scope="module")
def spoken():
    lines = [
        Line(SENTENCE.text, "woman-1"),
        Line(SENTENCE.text, "woman-1", 0.8),
        Line(SENTENCE.text, "man-2"),
    ]
    return list(speak_all(lines, KOKORO).values())


def test_every_word_has_its_place(spoken):
    for one in spoken:
        positions, places = zip(*one.words, strict=True)
        assert positions == (0, 5, 8, 12, 20, 23)
        assert list(places) == sorted(places)
        assert places[0] > 0
        assert places[-1] < len(one.samples)
    plain, slow, other = spoken
    assert len(slow.samples) > 1.1 * len(plain.samples)
    assert not np.array_equal(plain.samples, other.samples)


def test_a_pause_is_put_where_hardly_anything_is_heard(spoken):
    for one in spoken:
        wave, ((start, stop),) = put_between(one, SENTENCE, {Pause(500): np.zeros(RATE // 2)})
        assert stop - start == RATE // 2
        edge = RATE // 100
        power = np.mean(np.square(np.concatenate([wave[start - edge : start], wave[stop : stop + edge]])))
        assert power < 0.1 * np.mean(np.square(wave[wave != 0]))


def test_an_unknown_voice_is_refused():
    with pytest.raises(ScenarioError, match="no voice 'missing'"):
        speak_all([Line("Hello.", "missing")], KOKORO)
