from importlib.resources import as_file, files

import numpy as np
import pytest
from onnx_asr.preprocessors.numpy_preprocessor import NemoPreprocessorNumpy

from parley.asr.checkpoint import ParakeetConfig
from parley.asr.features.log_mel import LogMel, LogMelStream, normalize
from parley.audio.mel import mel_filters
from parley.runtime.onnx import open_session

ROUNDING = 2 * 257 * 2.0**-24 + 2 * 17 * 2.0**-24
"""How far frames may be apart that were computed beside others.

The matrix product sums 257 float32 terms for each band in an order that depends on the processor and the
shape. The terms are at least 0, so each sum is off by at most 257 x 2^-24 of itself, which is an absolute
error of its logarithm; two are compared, and each logarithm, at most 17, is rounded once more.
"""
REFERENCE = files("onnx_asr.preprocessors").joinpath("data")


def as_float(audio):
    return audio.astype(np.float32) / np.float32(32768)


@pytest.fixture(params=[80, 128])
def mel(request):
    return LogMel(ParakeetConfig(features_size=request.param))


def reference(bands, samples):
    """The features that onnx-asr computes in double precision, normalised."""
    lengths = np.array([len(samples)], np.int64)
    features, frames = NemoPreprocessorNumpy(f"nemo{bands}")(samples[None], lengths)
    return features[0, :, : frames[0]]


def reference_graph(bands, samples):
    """The same from onnx-asr's ONNX graph, whose own error is larger: it computes in single precision."""
    with as_file(REFERENCE.joinpath(f"nemo{bands}.onnx")) as path:
        session = open_session(path)
    feed = {"waveforms": samples[None], "waveforms_lens": np.array([len(samples)], np.int64)}
    features, frames = session.run(None, feed)
    return features[0, :, : frames[0]]


@pytest.mark.parametrize("bands", [80, 128])
def test_filters_are_those_of_an_independent_implementation(bands):
    with as_file(REFERENCE.joinpath("fbanks.npz")) as path, np.load(path) as tables:
        expected = tables[f"nemo{bands}"].T
    assert np.abs(mel_filters(bands, 512, 16_000) - expected).max() < 1e-7


def test_features_are_those_of_an_independent_implementation(mel, spoken):
    for clip in spoken[:8]:
        samples = as_float(clip.audio)
        features = normalize(mel.offline(samples))
        assert np.abs(features - reference(mel.bands, samples)).max() < 1e-4
        assert np.abs(features - reference_graph(mel.bands, samples)).max() < 1e-3


def test_pieces_give_the_frames_of_the_whole(mel, spoken):
    rng = np.random.default_rng(0)
    for clip in spoken[:3]:
        samples = as_float(clip.audio)
        stream = LogMelStream(mel)
        pieces, at = [], 0
        while at < len(samples):
            size = int(rng.integers(0, 2500))
            pieces.append(stream.push(samples[at : at + size]))
            at += size
        streamed = np.concatenate([*pieces, stream.finish()], axis=1)
        whole = mel.offline(samples)
        assert streamed.shape == whole.shape == (mel.bands, len(samples) // 160)
        assert np.abs(streamed - whole).max() < ROUNDING


def test_a_fork_and_its_original_do_not_disturb_each_other(mel, spoken):
    samples = as_float(spoken[0].audio)
    stream = LogMelStream(mel)
    stream.push(samples[:3000])
    twin = stream.fork()
    twin.push(np.ones(5000, np.float32))
    rest = np.concatenate([stream.push(samples[3000:]), stream.finish()], axis=1)
    assert np.abs(rest - mel.offline(samples)[:, -rest.shape[1] :]).max() < ROUNDING
    assert np.abs(twin.finish()).max() > 1, "other audio has other frames"


@pytest.mark.parametrize("count", [0, 1, 159, 160, 255, 256, 257, 511, 512, 513])
def test_very_short_audio_has_a_frame_for_every_hop(mel, count):
    assert mel.offline(np.full(count, 0.1, np.float32)).shape == (mel.bands, count // 160)


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_features_of_constant_audio_are_finite(mel, level):
    for count in (160, 320, 16_000):
        assert np.isfinite(normalize(mel.offline(np.full(count, level, np.float32)))).all()


def test_one_frame_has_no_deviation_and_becomes_zero(mel):
    assert not normalize(mel.offline(np.ones(200, np.float32))).any()


def test_a_model_may_want_features_as_they_are():
    frames = np.random.default_rng(0).standard_normal((80, 9)).astype(np.float32)
    assert np.array_equal(LogMel(ParakeetConfig()).normalized(frames), normalize(frames))
    assert np.array_equal(LogMel(ParakeetConfig(normalize="NA")).normalized(frames), frames)
