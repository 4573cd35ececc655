"""The vocoder over growing spectrograms of many utterances.

A frame's pitch depends on five frames on either side, a sample of the waveform on fourteen, the
outermost hardly. So the last ``5 + hold_back`` frames of an unfinished utterance wait for the next ones,
and each window of the spectrogram that is decoded begins 16 frames before its first new
one. With ``hold_back`` 12 the samples are those of the whole utterance in one piece (to 2e-6,
random weights of a speech-like level); with 11 they differ by 1e-4, with 10 by 1e-3, with 8 by
1e-2. Each frame less makes the first audio 20 ms earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from parley_torch.runtime.cuda_graphs import Capture, SharedMemory
from parley_torch.tts.s3gen.networks import MEL_BANDS
from parley_torch.tts.s3gen.vocoder import F0_CONTEXT, HOP, HarmonicSource, Vocoder, extend_sources
from parley_torch.tts.s3gen.window_graphs import VocoderGraphs, VocoderSizes, WindowGraphs, WindowSizes
from parley_torch.tts.s3gen.windows import AudioWindow, run_windows

LEFT = 16
"""Frames decoded again before the first new one: more than a sample depends on."""
_THIN = 0.9
"""A size that is a larger part of the next one gets no graphs of its own."""
_Run = Callable[[Sequence[AudioWindow]], list[Tensor]]


class VocoderState:
    """State of one utterance between chunks: at most 21 + ``hold_back`` frames of everything.

    ``hold_back`` frames at the end wait for the next ones.
    """

    def __init__(self, seed: int, hold_back: int) -> None:
        self._hold_back = hold_back
        self.source = HarmonicSource(seed)
        self._mel = torch.zeros(0)
        self._waves = torch.zeros(0)
        self._first = 0  # absolute number of the first frame held
        self._sent = 0  # frames whose audio is out
        self._known = 0  # frames whose source is made
        self._end = 0  # frames that have come

    def add(self, mel: Tensor) -> None:
        """Append frames, ``[80, n]``."""
        self._mel = torch.cat([self._mel, mel], dim=1) if self._mel.numel() else mel
        self._end += mel.shape[1]

    def pitch_window(self, *, last: bool) -> AudioWindow:
        """The frames around those whose pitch is next, ``[80, n]``."""
        begin = max(self._known - F0_CONTEXT, self._first)
        return AudioWindow((self._mel[:, begin - self._first :],), first=begin == 0, last=last)

    def new_pitch(self, pitch: Tensor, *, last: bool) -> Tensor:
        """The new and certain frames of the pitch of :meth:`pitch_window`."""
        certain = max(self._known, self._end if last else self._end - F0_CONTEXT)
        begin = max(self._known - F0_CONTEXT, self._first)
        new = pitch[self._known - begin : certain - begin]
        self._known = certain
        return new

    def add_source(self, waves: Tensor) -> None:
        """Append the source of the frames of :meth:`new_pitch`."""
        self._waves = torch.cat([self._waves, waves]) if self._waves.numel() else waves.clone()

    def window(self, *, last: bool) -> AudioWindow | None:
        """Spectrogram ``[80, n]`` and source ``[480 n]`` to decode next, if any."""
        if self._until(last=last) <= self._sent:
            return None
        begin = max(self._sent - LEFT, self._first)
        part = slice(begin - self._first, self._known - self._first)
        waves = self._waves[part.start * HOP : part.stop * HOP]
        return AudioWindow((self._mel[:, part], waves), first=begin == 0, last=last)

    def new_samples(self, waveform: Tensor, *, last: bool) -> Tensor:
        """The new samples of the decoded :meth:`window`; frames that are no longer needed are dropped."""
        until = self._until(last=last)
        begin = max(self._sent - LEFT, self._first)
        new = waveform[(self._sent - begin) * HOP : (until - begin) * HOP]
        self._sent = until
        drop = max(self._sent - LEFT - F0_CONTEXT, self._first) - self._first
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
    """``[80, n]``; n may be 0."""
    last: bool


def vocode(vocoder: Vocoder, jobs: Sequence[VocoderJob], graphs: VocoderGraphs | None = None) -> list[Tensor]:
    """The new samples of each utterance, ``[m]``; m may be 0.

    Windows of similar length are decoded together, by ``graphs`` if there are any. The host does not wait for
    the device.
    """
    run_pitch: _Run = partial(run_windows, vocoder.f0_predictor) if graphs is None else graphs.pitch.run
    run: _Run = partial(run_windows, vocoder) if graphs is None else graphs.waveform.run
    for job in jobs:
        job.state.add(job.mel)
    # All frames of a short first chunk may wait for a crossfade.
    begun = [(job, around) for job in jobs if (around := job.state.pitch_window(last=job.last)).frames]
    if begun:
        pitches = [
            job.state.new_pitch(pitch, last=job.last)
            for (job, _), pitch in zip(begun, run_pitch([around for _, around in begun]), strict=True)
        ]
        sources = extend_sources([job.state.source for job, _ in begun], pitches, vocoder.m_source.l_linear)
        for (job, _), waves in zip(begun, sources, strict=True):
            job.state.add_source(waves)
    ready = [(job, window) for job, _ in begun if (window := job.state.window(last=job.last)) is not None]
    decoded = iter(run([window for _, window in ready]))
    made = {id(job): job.state.new_samples(next(decoded), last=job.last) for job, _ in ready}
    return [made.get(id(job), job.mel.new_zeros(0)) for job in jobs]


def vocoder_sizes(steps: Sequence[int], longest: int, hold_back: int, rows: tuple[int, ...]) -> VocoderSizes:
    """Sizes of batches that hold every window.

    Args:
        steps: frames of the steps of a stream whose tokens never wait, until they repeat; the first ones may
            be 0. Its windows get sizes of their own.
        longest: frames of any step.
        hold_back: see :class:`VocoderState`.
        rows: rising numbers of rows to which batches are padded.
    """
    pitch, waveform = {2 * F0_CONTEXT + longest}, {LEFT + hold_back + F0_CONTEXT + longest}
    state = VocoderState(0, hold_back)
    for frames in steps:
        state.add(torch.zeros(MEL_BANDS, frames))
        around = state.pitch_window(last=False)
        if not around.frames:
            continue
        pitch.add(around.frames)
        new = state.new_pitch(torch.zeros(around.frames), last=False)
        state.add_source(torch.zeros(HOP * len(new)))
        if (window := state.window(last=False)) is not None:
            waveform.add(window.frames)
            state.new_samples(torch.zeros(HOP * window.frames), last=False)
    return VocoderSizes(
        WindowSizes(_thinned(pitch), rows, context=F0_CONTEXT),
        WindowSizes(_thinned(waveform), rows, context=LEFT),
    )


def _thinned(frames: set[int]) -> tuple[int, ...]:
    """The sizes in rising order, without those that are nearly the next larger one."""
    found: list[int] = []
    for size in sorted(frames, reverse=True):
        if not found or size < _THIN * found[-1]:
            found.append(size)
    return tuple(reversed(found))


def capture_vocoder(vocoder: Vocoder, sizes: VocoderSizes, capture: Capture) -> VocoderGraphs:
    """Graphs of the networks for all sizes."""
    device = vocoder.conv_post.weight.device
    mel, source = torch.zeros(MEL_BANDS, 1, device=device), torch.zeros(HOP, device=device)
    memory = SharedMemory()
    return VocoderGraphs(
        pitch=WindowGraphs(vocoder.f0_predictor, (mel,), sizes.pitch, capture, memory),
        waveform=WindowGraphs(vocoder, (mel, source), sizes.waveform, capture, memory),
    )
