"""The front end of many streams at once: the next frames of each in one computation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parley.asr.features.log_mel import SILENCE, LogMel
from parley.asr.pipeline.segmentation import FULL_SCALE


class BatchedLogMel:
    """Log-mel frames of utterances that arrive in pieces, one ring of audio for each.

    Equal to :meth:`parley.asr.features.log_mel.LogMel.offline` of each whole utterance, followed by silence
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
        longest = self._samples(frames)
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

    def total(self, samples: int) -> int:
        """Frames of an utterance that has ended."""
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
        begin = first * mel.hop - mel.n_fft // 2
        # One sample more at the front, for the pre-emphasis of the first.
        audio = self._rings.read(slots, begin - 1, self._samples(count)).astype(np.float32) / FULL_SCALE
        emphasized = audio[:, 1:] - mel.preemphasis * audio[:, :-1]
        rows = np.flatnonzero(ended)
        if len(rows):
            beyond = np.arange(emphasized.shape[1]) >= (written - begin)[rows, None]
            emphasized[rows] = np.where(beyond, np.float32(0), emphasized[rows])
        frames = mel.frames(emphasized)
        if len(rows):
            silent = np.arange(count) >= (written // mel.hop - first)[rows, None]
            frames[rows] = np.where(silent[:, None, :], SILENCE, frames[rows])
        return frames

    def _samples(self, frames: int) -> int:
        return (frames - 1) * self._mel.hop + self._mel.n_fft + 1


class AudioRings:
    """One ring of 16-bit samples for each slot, all in one preallocated array.

    A sample is addressed by its place in the utterance. The first ``lead`` samples before the
    utterance are zeros. What is written beyond a place that somebody still remembers does not
    disturb it, as long as both lie within ``capacity`` samples of each other: so writing needs no
    undoing when a step fails.
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
        stretches = np.lib.stride_tricks.sliding_window_view(self._samples, length, axis=1)
        return np.asarray(stretches[slots, (starts + self._lead) % self._capacity])

    def _mirror(self, slot: int) -> None:
        self._samples[slot, self._capacity :] = self._samples[slot, : self._longest]
