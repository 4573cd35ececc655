"""Log-mel features of whole recordings, of one stream, and of many streams at once."""

from importlib.resources import as_file, files

import numpy as np
import pytest
import torch
from onnx_asr.preprocessors.numpy_preprocessor import NemoPreprocessorNumpy

from parley.asr.checkpoint import ParakeetConfig
from parley.asr.features import SILENCE, AudioRings, BatchedLogMel, LogMel, LogMelStream, normalize
from parley.audio.mel import mel_filters
from parley.runtime.onnx import open_session
from parley_torch.asr.features import DeviceLogMel

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


def test_single_frame_is_normalized_to_zero(mel):
    assert not normalize(mel.offline(np.ones(200, np.float32))).any()


def test_a_model_may_want_features_as_they_are():
    frames = np.random.default_rng(0).standard_normal((80, 9)).astype(np.float32)
    assert np.array_equal(LogMel(ParakeetConfig()).normalized(frames), normalize(frames))
    assert np.array_equal(LogMel(ParakeetConfig(normalize="NA")).normalized(frames), frames)


STREAMED = ParakeetConfig(features_size=80, normalize="NA")
ROOM = 8000


class OnDevice(BatchedLogMel):
    """Computes frames as a recogniser on a torch device does."""

    def frames(self, slots, first, count, written, ended):
        stretch = self.stretch(slots, first, count, written, ended)
        on_device = DeviceLogMel(LogMel(STREAMED), torch.device("cpu"))
        return on_device(*map(torch.from_numpy, stretch)).transpose(1, 2).numpy()


@pytest.fixture(params=[BatchedLogMel, OnDevice])
def front_end(request):
    return request.param


def offline_frames(audio):
    return LogMel(STREAMED).offline(audio.astype(np.float32) / np.float32(32768))


def stream(front_end, recordings, counts, *, seed=0):
    """Send recordings at random speeds; take ``counts[i]`` frames at a time, and silence at the end."""
    rng = np.random.default_rng(seed)
    front = front_end(LogMel(STREAMED), len(recordings) + 2, audio=ROOM, frames=max(counts))
    slots = rng.permutation(len(recordings) + 2)[: len(recordings)]
    for slot in slots:
        front.write(slot, 0, rng.integers(-9000, 9000, ROOM).astype(np.int16))  # of an earlier stream
        front.begin(slot)
    written, frames = [0] * len(recordings), [0] * len(recordings)
    out = [[] for _ in recordings]
    steps = 0
    while True:
        steps += 1
        for row, audio in enumerate(recordings):
            piece = audio[written[row] : written[row] + int(rng.integers(0, 3000))]
            front.write(slots[row], written[row], piece)
            written[row] += len(piece)
        ended = [written[row] == len(audio) for row, audio in enumerate(recordings)]
        busy = True
        while busy:
            busy = False
            for count in set(counts):
                rows = [
                    row
                    for row in range(len(recordings))
                    if counts[row] == count
                    and (
                        frames[row] < front.total(written[row]) + count
                        if ended[row]
                        else written[row] >= front.needed(frames[row] + count)
                    )
                ]
                if not rows:
                    continue
                busy = True
                new = front.frames(
                    *(np.array([values[row] for row in rows]) for values in (slots, frames)),
                    count,
                    *(np.array([values[row] for row in rows]) for values in (written, ended)),
                )
                assert new.shape == (len(rows), STREAMED.features_size, count)
                for row, own in zip(rows, new, strict=True):
                    out[row].append(own)
                    frames[row] += count
        if all(ended):
            return [np.concatenate(pieces, axis=1) for pieces in out], steps


def test_streams_get_the_frames_of_their_whole_recordings(front_end, clips):
    recordings = [clip.audio for clip in clips[:16]]
    counts = [(8, 16, 56, 112)[row % 4] for row in range(len(recordings))]
    streamed, steps = stream(front_end, recordings, counts)
    assert steps > 5
    for audio, frames in zip(recordings, streamed, strict=True):
        expected = offline_frames(audio)
        total = expected.shape[1]
        assert frames.shape[1] >= total
        assert np.abs(frames[:, :total] - expected).max() < 1e-5
        assert np.abs(frames[:, total:] - SILENCE).max(initial=0) < 1e-5


@pytest.mark.parametrize("samples", [1, 159, 160, 256, 257, 400, 4096])
def test_very_short_streams_end_in_silence(front_end, samples):
    audio = np.full(samples, 9000, np.int16)
    ((frames,), _) = stream(front_end, [audio], [8])
    total = samples // 160
    assert np.abs(frames[:, :total] - offline_frames(audio)).max(initial=0) < 1e-5
    assert frames.shape[1] >= total + 8 - 7
    assert np.abs(frames[:, total:] - SILENCE).max(initial=0) < 1e-5


def test_frames_are_given_as_soon_as_their_audio_is_there(front_end):
    front = front_end(LogMel(STREAMED), 1, audio=ROOM, frames=8)
    audio = np.random.default_rng(0).integers(-9000, 9000, 4000).astype(np.int16)
    front.begin(0)
    front.write(0, 0, audio[: front.needed(8)])
    frames = front.frames(*map(np.array, ([0], [0])), 8, *map(np.array, ([front.needed(8)], [False])))
    assert front.needed(8) == 7 * 160 + 256
    assert np.abs(frames[0] - offline_frames(audio)[:, :8]).max() < 1e-5


def test_frames_of_a_dropped_step_have_no_effect():
    rings = AudioRings(1, capacity=1000, longest=300, lead=10)
    rings.clear(0)
    ones, twos = np.full(700, 1, np.int16), np.full(290, 2, np.int16)
    rings.write(0, 0, ones)
    rings.write(0, 700, -twos)  # the step that wrote this failed
    rings.write(0, 700, twos)
    read = rings.read(np.array([0, 0, 0]), np.array([-10, 690, 700]), 290)
    assert read[0].tolist() == [0] * 10 + [1] * 280
    assert read[1].tolist() == [1] * 10 + [2] * 280
    assert read[2].tolist() == [2] * 290


def test_rings_are_read_across_their_end():
    rings = AudioRings(3, capacity=100, longest=40, lead=5)
    rings.clear(1)
    samples = np.arange(1000, dtype=np.int16)
    for at in range(0, 1000, 7):
        rings.write(1, at, samples[at : at + 7])
        start = max(at - 60, 0)
        assert rings.read(np.array([1]), np.array([start]), 40)[0].tolist() == [
            value if value < min(at + 7, 1000) else rings.read(np.array([1]), np.array([value]), 1)[0, 0]
            for value in range(start, start + 40)
        ]


def test_step_makes_one_transform_for_all_streams(monkeypatch):
    calls = []
    rfft = np.fft.rfft
    monkeypatch.setattr(np.fft, "rfft", lambda pieces, axis: (calls.append(pieces.shape), rfft(pieces))[1])
    front = BatchedLogMel(LogMel(STREAMED), 64, audio=ROOM, frames=8)
    front.frames(np.arange(64), np.zeros(64, int), 8, np.full(64, 2000), np.zeros(64, bool))
    assert calls == [(64, 8, 512)]
