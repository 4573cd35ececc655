"""The audio of many utterances in one array, from which any stretch is read without being joined."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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
