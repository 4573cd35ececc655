"""The front end of many streams at once, against that of whole recordings."""

import numpy as np
import pytest

from parley.asr.checkpoint import ParakeetConfig
from parley.asr.features.batched import AudioRings, BatchedLogMel
from parley.asr.features.log_mel import SILENCE, LogMel
from parley.asr.features.log_mel_torch import TorchLogMel

CONFIG = ParakeetConfig(features_size=80, normalize="NA")
ROOM = 8000


@pytest.fixture(params=["numpy", "torch"])
def mel(request):
    return LogMel(CONFIG) if request.param == "numpy" else TorchLogMel(CONFIG, "cpu")


def whole(mel, audio):
    return LogMel(CONFIG).offline(audio.astype(np.float32) / np.float32(32768))


def stream(mel, recordings, counts, *, seed=0):
    """Send recordings at random speeds; take ``counts[i]`` frames at a time, and silence at the end."""
    rng = np.random.default_rng(seed)
    front = BatchedLogMel(mel, len(recordings) + 2, audio=ROOM, frames=max(counts))
    slots = rng.permutation(len(recordings) + 2)[: len(recordings)]
    for slot in slots:
        front.write(slot, 0, rng.integers(-9000, 9000, ROOM).astype(np.int16))  # somebody was here before
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
                assert new.shape == (len(rows), mel.bands, count)
                for row, own in zip(rows, new, strict=True):
                    out[row].append(own)
                    frames[row] += count
        if all(ended):
            return [np.concatenate(pieces, axis=1) for pieces in out], steps


def test_streams_get_the_frames_of_their_whole_recordings(mel, clips):
    recordings = [clip.audio for clip in clips[:16]]
    counts = [(8, 16, 56, 112)[row % 4] for row in range(len(recordings))]
    streamed, steps = stream(mel, recordings, counts)
    assert steps > 5
    for audio, frames in zip(recordings, streamed, strict=True):
        expected = whole(mel, audio)
        total = expected.shape[1]
        assert frames.shape[1] >= total
        assert np.abs(frames[:, :total] - expected).max() < 1e-5
        assert (frames[:, total:] == SILENCE).all()


@pytest.mark.parametrize("samples", [1, 159, 160, 256, 257, 400, 4096])
def test_very_short_recordings_end_in_silence(mel, samples):
    audio = np.full(samples, 9000, np.int16)
    ((frames,), _) = stream(mel, [audio], [8])
    total = samples // 160
    assert np.abs(frames[:, :total] - whole(mel, audio)).max(initial=0) < 1e-5
    assert frames.shape[1] >= total + 8 - 7
    assert (frames[:, total:] == SILENCE).all()


def test_frames_are_given_as_soon_as_their_audio_is_there(mel):
    front = BatchedLogMel(mel, 1, audio=ROOM, frames=8)
    audio = np.random.default_rng(0).integers(-9000, 9000, 4000).astype(np.int16)
    front.begin(0)
    front.write(0, 0, audio[: front.needed(8)])
    frames = front.frames(*map(np.array, ([0], [0])), 8, *map(np.array, ([front.needed(8)], [False])))
    assert front.needed(8) == 7 * 160 + 256
    assert np.abs(frames[0] - whole(mel, audio)[:, :8]).max() < 1e-5


def test_what_a_dropped_step_wrote_ahead_disturbs_nothing():
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


def test_one_step_is_one_transform_for_all_streams(monkeypatch):
    calls = []
    rfft = np.fft.rfft
    monkeypatch.setattr(np.fft, "rfft", lambda pieces, axis: (calls.append(pieces.shape), rfft(pieces))[1])
    front = BatchedLogMel(LogMel(CONFIG), 64, audio=ROOM, frames=8)
    front.frames(np.arange(64), np.zeros(64, int), 8, np.full(64, 2000), np.zeros(64, bool))
    assert calls == [(64, 8, 512)]
