"""The end-of-turn network, its features, and the service around it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import soundfile
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from parley.errors import InferenceError, InvalidAudioError, WeightsNotFoundError
from parley.serving.onnx import open_session
from parley.turns import smart_turn
from parley.turns.features import BANDS, FRAMES, SAMPLES, WhisperFeatures, last_seconds
from parley.turns.service import SmartTurnService
from parley.turns.smart_turn import FILE, SmartTurn, bundled_folder

ROOT = Path(__file__).resolve().parents[3]
CLIPS = sorted((ROOT / "tests/data/asr_eval").glob("s*.flac"))


@pytest.fixture(scope="module")
def clips():
    """Four recordings of 1 to 20 s, i16 [n] each."""
    some = [soundfile.read(path, dtype="int16")[0] for path in CLIPS[3:40:10]]
    return [*some[:3], np.tile(some[3], 8)[: 20 * 16_000]]


@pytest.fixture(scope="module")
def network():
    return SmartTurn(open_session(bundled_folder() / FILE))


def test_features_are_those_of_the_code_that_comes_with_the_network(clips):
    """That code computes in double precision too, so only the filters' single precision differs."""
    path = bundled_folder().parent / "_whisper_features.py"
    spec = importlib.util.spec_from_file_location("whisper_features", path)
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    rows = last_seconds(clips)
    found = WhisperFeatures().compute(rows)
    expected = np.stack([reference.compute_whisper_log_mel_features(row) for row in rows])
    assert found.shape == (4, BANDS, FRAMES)
    assert np.abs(found - expected).max() < 1e-5


def test_features_are_those_of_whisper(clips):
    from transformers import WhisperFeatureExtractor

    rows = last_seconds(clips)
    expected = WhisperFeatureExtractor(chunk_length=8)(
        list(rows), sampling_rate=16_000, max_length=SAMPLES, do_normalize=True, return_tensors="np"
    ).input_features
    assert np.abs(WhisperFeatures().compute(rows) - expected).max() < 1e-4


def test_only_the_last_eight_seconds_count():
    rows = last_seconds([np.arange(1, 4, dtype=np.int16), np.arange(SAMPLES + 5) % 30_000])
    assert rows.shape == (2, SAMPLES)
    assert rows[0, :-3].max() == 0
    assert (rows[0, -3:] * 32768).tolist() == [1, 2, 3]
    assert rows[1, 0] * 32768 == 5


def test_silence_has_features_too():
    features = WhisperFeatures().compute(np.zeros((1, SAMPLES), np.float32))
    assert np.isfinite(features).all()


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_a_score_does_not_depend_on_the_others(network, clips, rows):
    alone = [network.score([clip])[0] for clip in clips]
    together = SmartTurn(network._session, rows=rows).score(clips)
    assert together.tolist() == pytest.approx(alone, abs=1e-6)
    assert len({round(float(score), 3) for score in alone}) > 1
    assert (together >= 0).all()
    assert (together <= 1).all()


def test_the_network_hears_what_is_said_last(network, clips):
    speech = clips[0]
    before = np.concatenate([np.full(SAMPLES, 3000, np.int16), np.zeros(SAMPLES - len(speech), np.int16)])
    assert network.score([np.concatenate([before, speech])])[0] == pytest.approx(network.score([speech])[0])


def test_a_failing_network_is_an_inference_error():
    class Broken:
        def run(self, *_):
            raise RuntimeError("out of memory")

    with pytest.raises(InferenceError, match="end-of-turn network failed: out of memory"):
        SmartTurn(Broken()).score([np.zeros(100, np.int16)])


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(smart_turn.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(WeightsNotFoundError, match="pipecat-ai"):
        bundled_folder()


def test_each_request_gets_the_scores_of_its_own_rows(network, clips):
    service = SmartTurnService(network)
    service.warm_up()
    one, other = clips[0][:16_000], clips[1][:24_000]
    requests = [{"AUDIO": np.stack([one, one[::-1]])}, {"AUDIO": other[None]}]
    answers = [answer["PROBABILITY"] for answer in service.serve(requests)]
    assert [(answer.shape, answer.dtype) for answer in answers] == [
        ((2, 1), np.float32),
        ((1, 1), np.float32),
    ]
    expected = network.score([one, one[::-1], other])
    assert np.concatenate(answers)[:, 0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    "audio",
    [
        np.zeros((1, 0), np.int16),
        np.zeros((1, SAMPLES + 1), np.int16),
        np.zeros((1, 100), np.float32),
        np.zeros(100, np.int16),
    ],
)
def test_audio_that_cannot_be_scored_fails_alone(network, audio):
    bad, good = SmartTurnService(network).serve([{"AUDIO": audio}, {"AUDIO": np.zeros((1, 100), np.int16)}])
    assert isinstance(bad, InvalidAudioError)
    assert good["PROBABILITY"].shape == (1, 1)


def test_profiles_differ_only_in_their_instances():
    folder = ROOT / "model_repository" / "smart_turn"
    configs = [
        text_format.Parse((folder / name).read_text(), ModelConfig())
        for name in ("config.pbtxt", "configs/cpu.pbtxt")
    ]
    for config in configs:
        config.ClearField("instance_group")
    assert configs[0] == configs[1]
