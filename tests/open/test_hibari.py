"""Hibari's voice with its own weights."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from speech_sink import Sink, open_front_end

from parley.launcher.options import ROOT
from parley.runtime.weights import MODELS_DIR_VARIABLE
from parley.tts.clauses.synthesizer import ClauseSynthesizer
from parley.tts.hibari.network import load_network
from parley.tts.hibari.waveform import SAMPLE_RATE
from parley.tts.messages import SpeakRequest
from parley_torch.tts.voices.enrollment.recordings import loudness_lufs

MODELS = Path(os.environ.get(MODELS_DIR_VARIABLE) or ROOT / "models")
MISSING = [name for name in ("hibari-heart", "misaki-en", "g2p-en") if not (MODELS / name).is_dir()]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no weights in {MODELS}: {', '.join(MISSING)}")
TEXT = "Papa, papa, papa, papa. Is there anything else?"


@pytest.fixture(scope="module")
def synthesizer():
    synthesizer = ClauseSynthesizer(
        load_network(MODELS / "hibari-heart", open_front_end(MODELS), threads=1), name="hibari"
    )
    yield synthesizer
    synthesizer.close()


def say(synthesizer, seed=1, **fields):
    sink = Sink()
    synthesizer.submit(SpeakRequest(request_id="a", text=TEXT, seed=seed, **fields), sink)
    assert sink.ended.wait(60)
    return sink


def test_words_are_heard_where_their_marks_are(synthesizer):
    """Each "papa" begins with a silence: the lips are closed."""
    sink = say(synthesizer)
    assert [TEXT[word.start_char : word.end_char] for word in sink.words] == TEXT.split()
    samples = sink.samples
    assert 2.0 < len(samples) / SAMPLE_RATE < 5.0
    assert loudness_lufs(samples.astype(np.float32) / 32768, SAMPLE_RATE) == pytest.approx(-19, abs=3)
    size = SAMPLE_RATE // 200
    quiet = sink.quiet(size, 1e-3)
    for word in sink.words[1:4]:
        at = word.at_sample // size
        assert quiet[at - 14 : at + 4].any()
        assert not quiet[at : at + 40].all()


def test_the_seed_decides(synthesizer):
    first, again, other = (say(synthesizer, seed=seed).samples for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
