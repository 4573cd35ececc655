"""The end-of-turn network, its features, and the service around it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from parley.errors import InferenceError, InvalidAudioError, WeightsNotFoundError
from parley.models.smart_turn import SmartTurnService, load_network
from parley.runtime.onnx import open_session
from parley.runtime.parameters import Parameters
from parley.turns import smart_turn
from parley.turns.smart_turn import (
    BANDS,
    FILE,
    FRAMES,
    SAMPLES,
    TINY_FILE,
    SmartTurn,
    WhisperFeatures,
    bundled_folder,
    last_seconds,
    network_file,
)

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "models/tiny-smart-turn"
CONVERSATION = ROOT / "tests/data/conversation"
CLIPS = sorted((ROOT / "tests/data/asr_eval").glob("s*.flac"))


@pytest.fixture(scope="module")
def clips():
    """Four recordings of 1 to 20 s, i16 [n] each."""
    some = [soundfile.read(path, dtype="int16")[0] for path in CLIPS[3:40:10]]
    return [*some[:3], np.tile(some[3], 8)[: 20 * 16_000]]


@pytest.fixture(scope="module", params=["published", "tiny"])
def network(request):
    folder = bundled_folder() if request.param == "published" else TINY
    return SmartTurn(open_session(network_file(folder)))


@pytest.fixture(scope="module")
def tiny():
    return SmartTurn(open_session(TINY / TINY_FILE))


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


def test_only_the_last_eight_seconds_count():
    rows = last_seconds([np.arange(1, 4, dtype=np.int16), np.arange(SAMPLES + 5) % 30_000])
    assert rows.shape == (2, SAMPLES)
    assert rows[0, :-3].max() == 0
    assert (rows[0, -3:] * 32768).tolist() == [1, 2, 3]
    assert rows[1, 0] * 32768 == 5


@pytest.mark.parametrize("frames", [1, 400, FRAMES])
def test_the_last_frames_alone_are_the_same(clips, frames):
    rows = last_seconds([np.concatenate([clip, clip[-16_000:]]) for clip in clips])
    few, all_of_them = (WhisperFeatures().compute(rows, count) for count in (frames, FRAMES))
    assert few.shape == (4, BANDS, frames)
    # Only where they are cut off at the bottom depends on the loudest of them.
    floor = all_of_them.max(axis=(1, 2), keepdims=True) - 2.0
    assert np.allclose(np.maximum(few, floor), all_of_them[:, :, FRAMES - frames :], atol=1e-6)


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


def whole_and_cut(name, cut_ms):
    """A recording of the conversation, whole and cut off; 200 ms of silence after both."""
    speech = soundfile.read(CONVERSATION / f"{name}.wav", dtype="int16")[0]
    silence = np.zeros(3200, np.int16)
    return [np.concatenate([piece, silence]) for piece in (speech[:-800], speech[: cut_ms * 16])]


@pytest.mark.parametrize(
    ("name", "cut_ms"), [("04-timer", 920), ("04-timer", 1450), ("02-weather", 620), ("08-time", 800)]
)
def test_the_tiny_network_tells_a_pause_from_an_end(tiny, name, cut_ms):
    whole, cut = tiny.score(whole_and_cut(name, cut_ms))
    assert whole > 0.8
    assert cut < 0.2


@pytest.mark.parametrize("name", ["01-hello", "03-and-in-london", "05-correction", "07-stop", "13-thank-you"])
@pytest.mark.parametrize("gain", [1.0, 0.1])
def test_short_turns_are_complete_at_any_level(tiny, name, gain):
    whole, _ = whole_and_cut(name, 100)
    assert tiny.score([(whole * gain).astype(np.int16)])[0] > 0.5


def test_the_tiny_network_is_small_and_hears_three_seconds():
    assert (TINY / TINY_FILE).stat().st_size < 1_000_000
    inputs = {tensor.name: tensor.shape[1:] for tensor in open_session(TINY / TINY_FILE).get_inputs()}
    assert inputs == {"input_features": [BANDS, 300], "audio": [48_000]}


def test_a_folder_without_a_network_is_named(tmp_path):
    with pytest.raises(WeightsNotFoundError, match=f"{tmp_path} has neither"):
        network_file(tmp_path)
    (tmp_path / TINY_FILE).touch()
    assert network_file(tmp_path).name == TINY_FILE
    (tmp_path / FILE).touch()
    assert network_file(tmp_path).name == FILE


def test_a_failing_network_is_an_inference_error():
    class Broken:
        def get_inputs(self):
            return [SimpleNamespace(name="input_features", shape=["batch", BANDS, "frames"])]

        def run(self, *_):
            raise RuntimeError("out of memory")

    with pytest.raises(InferenceError, match="end-of-turn network failed: out of memory"):
        SmartTurn(Broken()).score([np.zeros(100, np.int16)])


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(smart_turn.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(WeightsNotFoundError, match="pipecat-ai"):
        bundled_folder()


@pytest.mark.parametrize(
    ("settings", "environment"),
    [({"weights": str(TINY)}, {}), ({}, {"PARLEY_WEIGHTS_SMART_TURN": str(TINY)})],
    ids=["parameter", "variable"],
)
def test_a_folder_of_weights_does_without_the_package(monkeypatch, settings, environment):
    monkeypatch.setitem(sys.modules, "pipecat", None)
    network = load_network(Parameters("smart_turn", settings, environment=environment), rows=1)
    assert network.score([np.zeros(16_000, np.int16)]).shape == (1,)
    with pytest.raises(WeightsNotFoundError, match="pipecat-ai"):
        load_network(Parameters("smart_turn", {}, environment={}), rows=1)


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
    # The network may see other batches here: as in test_a_score_does_not_depend_on_the_others.
    assert np.concatenate(answers)[:, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


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


def test_profiles_differ_only_in_their_instances_and_weights():
    folder = ROOT / "model_repository" / "smart_turn"
    configs = [
        text_format.Parse((folder / name).read_text(), ModelConfig())
        for name in ("config.pbtxt", "configs/tiny.pbtxt")
    ]
    gpu, tiny = ({key: value.string_value for key, value in config.parameters.items()} for config in configs)
    assert tiny == {**gpu, "weights": "tiny-smart-turn"}
    for config in configs:
        config.ClearField("instance_group")
        config.ClearField("parameters")
    assert configs[0] == configs[1]
