"""Waveforms from spectrograms that grow, for many utterances at once.

A frame's pitch depends on five frames on either side, a sample of the waveform on fourteen, the
outermost hardly. So the last ``5 + hold_back`` frames of an unfinished utterance wait for what
follows, and each window of the spectrogram that is decoded begins 16 frames before its first new
one. With ``hold_back`` 12 the samples are those of the whole utterance in one piece (to 2e-6,
random weights of a speech-like level); with 11 they differ by 1e-4, with 10 by 1e-3, with 8 by
1e-2. Each frame less lets the first audio come 20 ms earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everybody knows

from parley.tts.s3gen.hift import F0_CONTEXT, HOP, Vocoder
from parley.tts.s3gen.source import HarmonicSource, extend

_LEFT = 16  # frames decoded again before the first new one
_FULL = 0.75  # of the longest window, that a shorter one beside it must have


@dataclass(frozen=True)
class AudioWindow:
    """A stretch of frames for a network."""

    tensors: tuple[Tensor, ...]
    """``[..., k n]`` with k values for each of n frames."""
    first: bool
    """Whether the utterance begins with it."""
    last: bool
    """Whether the utterance ends with it."""

    @property
    def frames(self) -> int:
        """Its length n."""
        return self.tensors[0].shape[-1]

    def padded(self, frames: int) -> list[Tensor]:
        """The tensors with zeros, on the side where the utterance goes on anyway."""
        before, after = self._around(frames)
        scales = [tensor.shape[-1] // self.frames for tensor in self.tensors]
        return [
            F.pad(tensor, (before * scale, after * scale))
            for tensor, scale in zip(self.tensors, scales, strict=True)
        ]

    def cut(self, result: Tensor, frames: int) -> Tensor:
        """Of the result for the padded tensors, ``[k frames]``, what belongs to the window."""
        scale = result.shape[-1] // frames
        before = self._around(frames)[0]
        return result[before * scale : (before + self.frames) * scale]

    def _around(self, frames: int) -> tuple[int, int]:
        missing = frames - self.frames
        return (missing, 0) if self.last else (0, missing)

    def fits(self, frames: int) -> bool:
        """Whether it may be padded to so many frames."""
        whole = self.first and self.last
        return self.frames == frames or (not whole and self.frames >= _FULL * frames)


class VocoderState:
    """What one utterance keeps between chunks: at most 21 + ``hold_back`` frames of everything.

    Args:
        seed: of the source's noise.
        hold_back: frames at the end that wait for what follows them.
    """

    def __init__(self, seed: int, hold_back: int) -> None:
        self._hold_back = hold_back
        self.source = HarmonicSource(seed)
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

    def pitch_window(self, *, last: bool) -> AudioWindow:
        """The frames around those whose pitch is wanted next, ``[80, n]``."""
        begin = max(self._known - F0_CONTEXT, self._first)
        return AudioWindow((self._mel[:, begin - self._first :],), first=begin == 0, last=last)

    def new_pitch(self, pitch: Tensor, *, last: bool) -> Tensor:
        """Of the pitch of :meth:`pitch_window`, the frames that are new and certain."""
        certain = max(self._known, self._end if last else self._end - F0_CONTEXT)
        begin = max(self._known - F0_CONTEXT, self._first)
        new = pitch[self._known - begin : certain - begin]
        self._known = certain
        return new

    def add_source(self, waves: Tensor) -> None:
        """Append the source of the frames of :meth:`new_pitch`."""
        self._waves = torch.cat([self._waves.to(waves), waves])

    def window(self, *, last: bool) -> AudioWindow | None:
        """Spectrogram ``[80, n]`` and source ``[480 n]`` to decode next, if any."""
        if self._until(last=last) <= self._sent:
            return None
        begin = max(self._sent - _LEFT, self._first)
        part = slice(begin - self._first, self._known - self._first)
        waves = self._waves[part.start * HOP : part.stop * HOP]
        return AudioWindow((self._mel[:, part], waves), first=begin == 0, last=last)

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

    Windows of similar length are decoded together.
    """
    for job in jobs:
        job.state.add(job.mel)
    windows = [job.state.pitch_window(last=job.last) for job in jobs]
    pitches = [
        job.state.new_pitch(pitch, last=job.last)
        for job, pitch in zip(jobs, _together(vocoder.f0_predictor, windows), strict=True)
    ]
    sources = extend([job.state.source for job in jobs], pitches, vocoder.m_source.l_linear)
    for job, waves in zip(jobs, sources, strict=True):
        job.state.add_source(waves)
    ready = [(job, window) for job in jobs if (window := job.state.window(last=job.last)) is not None]
    decoded = iter(_together(vocoder, [window for _, window in ready]))
    made = {id(job): job.state.take(next(decoded), last=job.last) for job, _ in ready}
    return [made.get(id(job), job.mel.new_zeros(0)) for job in jobs]


def _together(run: Callable[..., Tensor], windows: Sequence[AudioWindow]) -> list[Tensor]:
    """Run on windows of similar lengths in one call each; the results in the windows' order.

    A window that ends where its utterance goes on is padded there, one that begins where its
    utterance has begun long ago is padded there: the frames next to the edge are not used.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(windows)), key=lambda index: -windows[index].frames):
        if groups and windows[index].fits(windows[groups[-1][0]].frames):
            groups[-1].append(index)
        else:
            groups.append([index])
    results: dict[int, Tensor] = {}
    for members in groups:
        frames = windows[members[0]].frames
        stacked = zip(*(windows[member].padded(frames) for member in members), strict=True)
        output = run(*(torch.stack(tensors) for tensors in stacked))
        for member, result in zip(members, output, strict=True):
            results[member] = windows[member].cut(result, frames)
    return [results[index] for index in range(len(windows))]
