"""NeMo's log-mel front end in numpy: for whole recordings, one stream, and many streams at once.

A recording becomes ``samples // hop`` frames: pre-emphasis, a symmetric Hann window centred in an
FFT over audio that is padded with zeros on both sides, power, Slaney's mel filters, logarithm. It
is what ``AudioToMelSpectrogramPreprocessor`` computes with ``dither=0`` and ``pad_to=0``; see
https://github.com/NVIDIA/NeMo/blob/main/nemo/collections/asr/parts/preprocessing/features.py.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import ParakeetConfig
from parley.asr.segmenter.segmentation import FULL_SCALE
from parley.audio.mel import mel_filters

LOG_GUARD = np.float32(2**-24)
"""Added to every band's energy before the logarithm."""
SILENCE = np.log(LOG_GUARD)
"""What digital silence is in every band."""
STD_GUARD = np.float32(1e-5)
"""Added to every band's deviation before the division by it."""

Count = TypeVar("Count", int, NDArray[np.int64])


def normalize(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give every band mean 0 and standard deviation 1 over time (NeMo's ``per_feature``).

    A single frame has no deviation: it becomes zeros.

    Args:
        frames: f32 ``[bands, n]``.
    """
    if frames.shape[1] < 2:
        return np.zeros_like(frames)
    mean = frames.mean(axis=1, keepdims=True)
    deviation = frames.std(axis=1, ddof=1, keepdims=True)
    return np.asarray((frames - mean) / (deviation + STD_GUARD), np.float32)


class LogMel:
    """The front end's constants and its one formula; holds no audio."""

    def __init__(self, config: ParakeetConfig) -> None:
        self.bands = config.features_size
        self.hop = config.hop_length
        self.n_fft = config.n_fft
        self.preemphasis = np.float32(config.preemphasis)
        self._normalize = config.normalize
        self.filters = mel_filters(config.features_size, config.n_fft, config.sample_rate)
        window = np.zeros(config.n_fft, np.float32)
        margin = (config.n_fft - config.win_length) // 2
        window[margin : margin + config.win_length] = np.hanning(config.win_length)
        self.window = window

    def frames(self, emphasized: NDArray[np.float32]) -> NDArray[np.float32]:
        """All frames that lie completely inside pre-emphasised, padded audio.

        Args:
            emphasized: f32 ``[..., m]``, for example of several streams.

        Returns:
            f32 ``[..., bands, n]``, ``n`` = max(0, (m - n_fft) // hop + 1).
        """
        rows = emphasized.shape[:-1]
        count = (emphasized.shape[-1] - self.n_fft) // self.hop + 1
        if count <= 0:
            return np.zeros((*rows, self.bands, 0), np.float32)
        pieces = _stretches(np.ascontiguousarray(emphasized), self.n_fft, self.hop)
        spectrum = np.fft.rfft(pieces * self.window, axis=-1)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        mel = power.reshape(-1, power.shape[-1]) @ self.filters.T
        frames = np.log(mel + LOG_GUARD).reshape(*rows, count, self.bands)
        return np.ascontiguousarray(frames.swapaxes(-1, -2), np.float32)

    def samples(self, frames: int) -> int:
        """Samples of which that many frames are made, with the one before the first."""
        return (frames - 1) * self.hop + self.n_fft + 1

    def normalized(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """The encoder's input: f32 ``[bands, n]``."""
        return normalize(frames) if self._normalize == "per_feature" else frames

    def offline(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """All frames of a whole recording, not normalised: f32 ``[bands, len(samples) // hop]``."""
        stream = LogMelStream(self)
        return np.concatenate([stream.push(samples), stream.finish()], axis=1)


class LogMelStream:
    """Frames of a recording that arrives in pieces; equal to the whole recording's.

    It holds less than one FFT length of audio. After :meth:`finish` it is used up.
    """

    def __init__(self, mel: LogMel) -> None:
        self._mel = mel
        self._pending = np.zeros(mel.n_fft // 2, np.float32)
        self._previous = np.float32(0.0)
        self._samples = 0
        self._frames = 0

    def fork(self) -> LogMelStream:
        """Return an independent copy (arrays are replaced, never changed, so they may be shared)."""
        return copy.copy(self)

    def push(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take the next piece and return the frames that it completes.

        Args:
            samples: f32 ``[n]`` within ±1, any length.

        Returns:
            f32 ``[bands, m]``.
        """
        if len(samples) == 0:
            return np.zeros((self._mel.bands, 0), np.float32)
        before = np.concatenate([[self._previous], samples[:-1]]).astype(np.float32)
        emphasized = samples - self._mel.preemphasis * before
        self._previous = samples[-1]
        self._samples += len(samples)
        self._pending = np.concatenate([self._pending, emphasized])
        return self._take(self._mel.frames(self._pending))

    def finish(self) -> NDArray[np.float32]:
        """Return the last frames, which need the zeros after the recording: f32 ``[bands, m]``."""
        padded = np.pad(self._pending, (0, self._mel.n_fft // 2))
        return self._take(self._mel.frames(padded)[:, : self._samples // self._mel.hop - self._frames])

    def _take(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        self._pending = self._pending[frames.shape[1] * self._mel.hop :]
        self._frames += frames.shape[1]
        return frames


class BatchedLogMel:
    """Log-mel frames of utterances that arrive in pieces, one ring of audio for each.

    Equal to :meth:`parley.asr.features.LogMel.offline` of each whole utterance, followed by silence
    without end. What has been given out is remembered by the caller, not here.
    """

    def __init__(self, mel: LogMel, slots: int, *, audio: int, frames: int) -> None:
        """Allocate.

        Args:
            mel: the constants and the formula.
            slots: utterances at once.
            audio: samples that may wait in a slot, beside those of the next frames.
            frames: frames that are asked for at once, at most.
        """
        self._mel = mel
        longest = mel.samples(frames)
        self._rings = AudioRings(slots, capacity=audio + longest, longest=longest, lead=mel.n_fft // 2 + 1)

    def begin(self, slot: int) -> None:
        """Use a slot for a new utterance."""
        self._rings.clear(slot)

    def write(self, slot: int, at: int, samples: NDArray[np.int16]) -> None:
        """Add audio: i16 ``[n]`` from the utterance's sample ``at`` on."""
        self._rings.write(slot, at, samples)

    def needed(self, frames: int) -> int:
        """Samples of an utterance that its first ``frames`` frames need while it goes on."""
        return (frames - 1) * self._mel.hop + self._mel.n_fft // 2

    def total(self, samples: Count) -> Count:
        """Frames of an utterance that has ended, or of several: i64 ``[B]``."""
        return samples // self._mel.hop

    def frames(
        self,
        slots: NDArray[np.int64],
        first: NDArray[np.int64],
        count: int,
        written: NDArray[np.int64],
        ended: NDArray[np.bool_],
    ) -> NDArray[np.float32]:
        """The next frames of several utterances.

        Args:
            slots: i64 ``[B]``.
            first: i64 ``[B]``, each one's first frame.
            count: frames of each.
            written: i64 ``[B]``, samples of each so far; what goes on has enough for all frames.
            ended: bool ``[B]``; after what has ended comes silence.

        Returns:
            f32 ``[B, bands, count]``, not normalised.
        """
        mel = self._mel
        audio, real_samples, real_frames = self.stretch(slots, first, count, written, ended)
        samples = audio.astype(np.float32) / FULL_SCALE
        emphasized = samples[:, 1:] - mel.preemphasis * samples[:, :-1]
        rows = np.flatnonzero(ended)
        if len(rows):
            beyond = np.arange(emphasized.shape[1]) >= real_samples[rows, None]
            emphasized[rows] = np.where(beyond, np.float32(0), emphasized[rows])
        frames = mel.frames(emphasized)
        if len(rows):
            silent = np.arange(count) >= real_frames[rows, None]
            frames[rows] = np.where(silent[:, None, :], SILENCE, frames[rows])
        return frames

    def stretch(
        self,
        slots: NDArray[np.int64],
        first: NDArray[np.int64],
        count: int,
        written: NDArray[np.int64],
        ended: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int16], NDArray[np.int64], NDArray[np.int64]]:
        """The audio of :meth:`frames`, whose arguments these are.

        Returns:
            i16 ``[B, samples]``, from one sample before the first frame's on, for its pre-emphasis; and, each
            i64 ``[B]``, after how many samples (without that one) and after how many frames silence begins.
        """
        begin = first * self._mel.hop - self._mel.n_fft // 2
        audio = self._rings.read(slots, begin - 1, self._mel.samples(count))
        real_samples = np.where(ended, written - begin, audio.shape[1])
        real_frames = np.where(ended, self.total(written) - first, count)
        return audio, real_samples, real_frames


class AudioRings:
    """One ring of 16-bit samples for each slot, all in one preallocated array.

    A sample is addressed by its place in the utterance. The first ``lead`` samples before the
    utterance are zeros. Writing beyond a remembered place leaves it intact, as long as both lie within
    ``capacity`` samples of each other: so writes need no undoing when a step fails.
    """

    def __init__(self, slots: int, *, capacity: int, longest: int, lead: int) -> None:
        """Allocate.

        Args:
            slots: how many rings.
            capacity: samples that a ring holds.
            longest: samples that are read at once, at most; not more than ``capacity``.
            lead: samples before the beginning that may be read.
        """
        self._capacity = capacity
        self._lead = lead
        self._longest = longest
        # The beginning of a ring is there once more behind its end: every stretch is contiguous.
        self._samples = np.zeros((slots, capacity + longest), np.int16)

    def clear(self, slot: int) -> None:
        """Begin an utterance."""
        self._samples[slot, : self._lead] = 0
        self._mirror(slot)

    def write(self, slot: int, at: int, samples: NDArray[np.int16]) -> None:
        """Add audio.

        Args:
            slot: whose.
            at: place of its first sample in the utterance.
            samples: i16 ``[n]``, not more than ``capacity``.
        """
        ring = self._samples[slot]
        begin = (at + self._lead) % self._capacity
        first = samples[: self._capacity - begin]
        ring[begin : begin + len(first)] = first
        rest = samples[len(first) :]
        ring[: len(rest)] = rest
        if begin < self._longest or len(rest):
            self._mirror(slot)

    def read(self, slots: NDArray[np.int64], starts: NDArray[np.int64], length: int) -> NDArray[np.int16]:
        """One stretch of each of several rings, in one copy.

        Args:
            slots: i64 ``[B]``.
            starts: i64 ``[B]``, place of each stretch's first sample, ``-lead`` or later.
            length: samples of each, ``longest`` at most.

        Returns:
            i16 ``[B, length]``.
        """
        stretches = _stretches(self._samples, length)
        return np.asarray(stretches[slots, (starts + self._lead) % self._capacity])

    def _mirror(self, slot: int) -> None:
        self._samples[slot, self._capacity :] = self._samples[slot, : self._longest]


def _stretches(samples: NDArray[Any], length: int, step: int = 1) -> NDArray[Any]:
    """Every ``step``-th stretch of the last axis: a view ``[..., n, length]`` of a contiguous array.

    numpy's ``sliding_window_view`` checks more, in ten times the time.
    """
    *rows, width = samples.shape
    *outer, inner = samples.strides
    shape = (*rows, (width - length) // step + 1, length)
    return np.ndarray(shape, samples.dtype, samples, strides=(*outer, step * inner, inner))
