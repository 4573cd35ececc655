"""Hibari's network, with weights that hum."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "model_server"))

import fake_pb_utils
from fake_pb_utils import Request
from hibari_weights import FRAME, write_weights

from parley.engines.speech import KnownSpeaker
from parley.errors import (
    InferenceError,
    ModelLoadingError,
    UnsupportedLanguageError,
    UnsupportedVoiceError,
    WeightsNotFoundError,
)
from parley.inference import struct_tensor
from parley.models import hibari
from parley.models.hibari import HibariModel
from parley.runtime.onnx import Stop, StoppedError
from parley.runtime.parameters import Parameters
from parley.tts.english.pronouncer import PronouncedWord
from parley.tts.hibari.network import load_network
from parley.tts.hibari.waveform import SAMPLE_RATE
from parley.tts.messages import SpeakRequest

WORDS = [PronouncedWord("huh", "hə", 0, 3, "“"), PronouncedWord("w", "w", 4, 5, "", ".")]


class FrontEnd:
    def pronounce(self, text):
        return WORDS


@pytest.fixture
def network(tmp_path):
    return load_network(write_weights(tmp_path / "hibari"), FrontEnd(), threads=1)


def speak(network, words=WORDS, **fields):
    sound = network.speak(words, SpeakRequest(request_id="a", **fields), Stop())
    return sound, sound.make(Stop())


def test_words_begin_where_their_first_sound_does(network):
    sound, audio = speak(network)
    # Of the pads one frame each, of all symbols three: “ h ə blank w full stop.
    assert list(sound.begins) == [FRAME * (1 + 3), FRAME * (1 + 4 * 3)]
    assert len(audio) == FRAME * (2 + 6 * 3)
    assert sound.complete


def test_the_pitch_is_the_networks(network):
    audio = speak(network)[1][2 * FRAME : -2 * FRAME].astype(float)
    loudest_hz = np.argmax(np.abs(np.fft.rfft(audio))) * SAMPLE_RATE / len(audio)
    assert loudest_hz % 200 == pytest.approx(0, abs=5)


def test_a_seed_decides_the_noise(network):
    first, again, other, unseeded = (speak(network, seed=seed)[1] for seed in (1, 1, 2, None))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first != unseeded).any()


def test_what_it_cannot_speak_is_refused(network):
    network.check(None, "en")
    network.check("heart", "en-US")
    with pytest.raises(UnsupportedVoiceError, match="heart"):
        network.check("af_heart", "en")
    with pytest.raises(UnsupportedLanguageError):
        network.check("heart", "de")
    assert KnownSpeaker(None, model="hibari").voices == ["heart"]


def test_what_was_stopped_is_not_begun(network):
    stop = Stop()
    stop.request()
    with pytest.raises(StoppedError):
        network.speak(WORDS, SpeakRequest(request_id="a"), stop)


@pytest.mark.parametrize(
    ("weights", "match"),
    [({"loudness": -30.0}, "only silence"), ({"pitch_hz": np.nan}, "not numbers")],
)
def test_what_is_no_speech_has_failed(tmp_path, weights, match):
    network = load_network(write_weights(tmp_path / "voice", **weights), FrontEnd(), threads=1)
    with pytest.raises(InferenceError, match=match):
        speak(network)


def test_a_graph_without_durations_is_refused(tmp_path):
    path = write_weights(tmp_path / "voice") / "hibari.onnx"
    path.write_bytes(path.read_bytes().replace(b"/Clip_output_0", b"/Clip_output_1"))
    with pytest.raises(ModelLoadingError, match="hibari"):
        load_network(path.parent, FrontEnd(), threads=1)


def test_the_model_speaks_as_it_is_configured(tmp_path, monkeypatch):
    monkeypatch.setattr(hibari, "load_front_end", lambda _: FrontEnd())
    folder = write_weights(tmp_path / "hibari-heart")
    environment = {"PARLEY_WEIGHTS_HIBARI": str(folder)}
    model = HibariModel(fake_pb_utils, Parameters("hibari", {}, environment=environment))
    request = Request({"REQUEST": struct_tensor(SpeakRequest(request_id="a", text="Huh w."))})
    model.execute([request])
    assert request.sender.final.wait(60)
    assert request.sender.sent[0][0] == "data"
    model.close()
    with pytest.raises(WeightsNotFoundError):
        HibariModel(
            fake_pb_utils, Parameters("hibari", {}, environment={"PARLEY_WEIGHTS_HIBARI": "/nowhere"})
        )
