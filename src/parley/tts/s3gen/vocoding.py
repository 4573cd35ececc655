"""Waveforms from spectrograms that grow, for many utterances at once.

A frame's pitch depends on five frames on either side, a sample of the waveform on fourteen, the
outermost hardly. So the last ``5 + hold_back`` frames of an unfinished utterance wait for what
follows, and each window of the spectrogram that is decoded begins 16 frames before its first new
one. With ``hold_back`` 12 the samples are those of the whole utterance in one piece (to 2e-6,
random weights of a speech-like level); with 11 they differ by 1e-4, with 10 by 1e-3, with 8 by
1e-2. Each frame less lets the first audio come 20 ms earlier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from parley.tts.s3gen.hift import F0_CONTEXT, HOP, Vocoder
from parley.tts.s3gen.source import HarmonicSource

_LEFT = 16  # frames decoded again before the first new one


class VocoderState:
    """What one utterance keeps between chunks: at most 21 + ``hold_back`` frames of everything.

    Args:
        seed: of the source's noise.
        hold_back: frames at the end that wait for what follows them.
    """

    def __init__(self, seed: int, hold_back: int) -> None:
        self._hold_back = hold_back
        self._source = HarmonicSource(seed)
        self._mel = torch.zeros(0)
        self._waves = torch.zeros(0)
        self._first = 0  # absolute number of the first frame kept
        self._sent = 0  # frames whose audio is out
        self._known = 0  # frames whose source is made
        self._end = 0  # frames that have come

    def add(self, mel: Tensor) -> None:
        """Append frames, ``[80, n]``."""
        self._mel = torch.cat([self._mel, mel], dim=1) if self._mel.numel() else mel
        self._end += mel.shape[1]

    def pitch_window(self) -> Tensor:
        """The frames around those whose pitch is wanted next, ``[80, n]``."""
        return self._mel[:, max(self._known - F0_CONTEXT, self._first) - self._first :]

    def add_source(self, pitch: Tensor, vocoder: Vocoder, *, last: bool) -> None:
        """Make the source as far as the pitch is certain.

        Args:
            pitch: of :meth:`pitch_window`, ``[n]``.
            vocoder: knows how to sum the harmonics.
            last: no frame follows.
        """
        certain = self._end if last else self._end - F0_CONTEXT
        begin = max(self._known - F0_CONTEXT, self._first)
        if certain > self._known:
            new = self._source.extend(pitch[self._known - begin : certain - begin], vocoder.m_source.l_linear)
            self._waves = torch.cat([self._waves.to(new), new])
            self._known = certain

    def window(self, *, last: bool) -> tuple[Tensor, Tensor] | None:
        """Spectrogram ``[80, n]`` and source ``[480 n]`` to decode next, if any."""
        if self._until(last=last) <= self._sent:
            return None
        begin = max(self._sent - _LEFT, self._first) - self._first
        end = self._known - self._first
        return self._mel[:, begin:end], self._waves[begin * HOP : end * HOP]

    def take(self, waveform: Tensor, *, last: bool) -> Tensor:
        """The new samples of the decoded :meth:`window`; what is not needed any more is dropped."""
        until = self._until(last=last)
        begin = max(self._sent - _LEFT, self._first)
        new = waveform[(self._sent - begin) * HOP : (until - begin) * HOP]
        self._sent = until
        drop = max(self._sent - _LEFT - F0_CONTEXT, self._first) - self._first
        self._mel, self._waves = self._mel[:, drop:].clone(), self._waves[drop * HOP :].clone()
        self._first += drop
        return new

    def _until(self, *, last: bool) -> int:
        return self._known if last else self._known - self._hold_back


@dataclass(frozen=True)
class VocoderJob:
    """New frames of one utterance."""

    state: VocoderState
    mel: Tensor
    """``[80, n]``."""
    last: bool


def vocode(vocoder: Vocoder, jobs: Sequence[VocoderJob]) -> list[Tensor]:
    """The new samples of each utterance, ``[m]``; m may be 0.

    Windows of equal length are decoded together; chunks of equal number have such.
    """
    for job in jobs:
        job.state.add(job.mel)
    pitches = _together(vocoder.f0_predictor, [(job.state.pitch_window(),) for job in jobs])
    for job, pitch in zip(jobs, pitches, strict=True):
        job.state.add_source(pitch, vocoder, last=job.last)
    windows = [job.state.window(last=job.last) for job in jobs]
    waveforms = iter(_together(vocoder, [window for window in windows if window is not None]))
    return [
        job.mel.new_zeros(0) if window is None else job.state.take(next(waveforms), last=job.last)
        for job, window in zip(jobs, windows, strict=True)
    ]


def _together(run: Callable[..., Tensor], inputs: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """Run on inputs of equal shapes in one call each, and give the results in the inputs' order."""
    groups: dict[int, list[int]] = defaultdict(list)
    for index, tensors in enumerate(inputs):
        groups[tensors[0].shape[-1]].append(index)
    results: list[Tensor | None] = [None] * len(inputs)
    for members in groups.values():
        stacked = [
            torch.stack(tensors) for tensors in zip(*(inputs[member] for member in members), strict=True)
        ]
        for member, result in zip(members, run(*stacked), strict=True):
            results[member] = result
    return [result for result in results if result is not None]
