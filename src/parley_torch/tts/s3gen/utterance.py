"""One utterance from tokens to audio."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.errors import InvalidInputError
from parley_torch.tts.s3gen.flow import AudioVoice, FlowRow, flow_noise, prompt_noise
from parley_torch.tts.s3gen.networks import LOOKAHEAD
from parley_torch.tts.s3gen.scheduling import ChunkSchedule
from parley_torch.tts.s3gen.state import FRAMES_PER_TOKEN, Past, bounded
from parley_torch.tts.s3gen.vocoder import HOP, SAMPLE_RATE
from parley_torch.tts.s3gen.vocoder_state import VocoderState, vocoder_sizes
from parley_torch.tts.s3gen.window_graphs import VocoderSizes
from parley_torch.tts.watermark import PerthStream, PerthWatermark

_OVERLAP = 8  # frames of the crossfade
SAMPLES_PER_TOKEN = FRAMES_PER_TOKEN * HOP
_SILENCE = SAMPLE_RATE // 50
"""Samples at the beginning that are silenced, and as many that are faded in.

As upstream does, because the end of the reference speech is audible there.
"""


class PcmOutput:
    """Fades in, marks and resamples consecutive chunks. Floats until the end: soxr dithers integers."""

    def __init__(self, rate: int, mark: PerthStream | None = None) -> None:
        self.rate = rate
        self._mark = mark
        self.samples = 0
        """Samples returned so far."""
        self._received = 0
        self._resampler = (
            None
            if rate == SAMPLE_RATE
            else soxr.ResampleStream(SAMPLE_RATE, rate, 1, dtype="float32", quality="HQ")
        )

    def push(self, audio: NDArray[np.float32], *, last: bool) -> NDArray[np.int16]:
        """The PCM that is certain so far; i16 ``[m]``, m may be 0."""
        faded = audio * fade_in(self._received, len(audio))
        self._received += len(audio)
        if self._mark is not None:
            faded = self._mark.push(faded, last=last)
        if self._resampler is not None:
            faded = self._resampler.resample_chunk(faded, last=last)
        self.samples += len(faded)
        pcm: NDArray[np.int16] = np.round(np.clip(faded, -1.0, 1.0) * 32767.0).astype(np.int16)
        return pcm


def fade_in(first: int, count: int) -> NDArray[np.float32]:
    """Gain of samples ``first`` ... of an utterance, f32 ``[count]``."""
    # The ramp begins with 0 and ends with 1.
    ramp = (np.arange(first, first + count) - _SILENCE) / (_SILENCE - 1)
    gain: NDArray[np.float32] = ((1.0 - np.cos(np.pi * np.clip(ramp, 0.0, 1.0))) / 2.0).astype(np.float32)
    return gain


@dataclass(frozen=True)
class Plan:
    """Settings that all utterances of a model share."""

    schedule: ChunkSchedule = field(default_factory=ChunkSchedule)
    full_attention: bool = False
    """Frames see later frames as well; chunks that were made before those existed are crossfaded.

    For weights whose audio suffers from chunked attention. Streamed audio then differs from
    audio made in one piece.
    """
    recompute: bool = False
    """Run the flow over the prompt and everything again for each chunk, instead of keeping the past.

    The audio is the same. For guided checkpoints, whose past needs ten times the memory.
    """
    past_tokens: int = 0
    """How far before its chunk a frame sees the utterance; 0: to its beginning. Bounds the state."""
    hold_back: int = 12
    """See :mod:`parley_torch.tts.s3gen.vocoder_state`."""
    max_tokens: int = 1_500
    """Tokens of one utterance: 60 s."""
    max_step: int = 200
    """New tokens of one step, unless a chunk or the end asks for more."""
    watermark: PerthWatermark | None = None
    """Marks all audio, which delays it by 214 ms."""

    @property
    def keeps_past(self) -> bool:
        """Whether the next chunks reuse the state of earlier ones."""
        return not (self.full_attention or self.recompute)

    @property
    def longest_step(self) -> int:
        """New tokens of any step: the last chunk takes those with it that were to be look-ahead."""
        return max(self.max_step, max(self.schedule.sizes) + LOOKAHEAD - 1)

    def vocoder_sizes(self, rows: tuple[int, ...]) -> VocoderSizes:
        """Sizes of the vocoder's batches, for ``rows`` to which they are padded."""
        overlap = _OVERLAP if self.full_attention else 0
        # The last chunk's size repeats; after two of them, beyond the first overlap, all windows do.
        chunks = (*self.schedule.sizes, *self.schedule.sizes[-1:] * (2 + overlap))
        ends = [max(FRAMES_PER_TOKEN * end - overlap, 0) for end in itertools.accumulate(chunks)]
        steps = [end - begin for begin, end in itertools.pairwise([0, *ends])]
        longest = FRAMES_PER_TOKEN * self.longest_step + overlap
        return vocoder_sizes(steps, longest, self.hold_back, rows)


class AudioUtterance:
    """State of one utterance; bounded by ``plan.max_tokens`` and ``plan.past_tokens``.

    The same seed (of all noise), voice and tokens make the same audio, of ``rate`` hertz.
    """

    def __init__(self, voice: AudioVoice, plan: Plan, *, seed: int, rate: int) -> None:
        self.voice = voice
        self.keeps_past = plan.keeps_past
        self.ended = False
        """Whether all tokens have arrived."""
        self.finished = False
        """Whether all audio was made."""
        self.vocoder = VocoderState(seed, plan.hold_back)
        self.output = PcmOutput(rate, plan.watermark.begin() if plan.watermark else None)
        self._plan = plan
        self._seed = seed
        self._tokens = np.zeros(0, np.int64)
        self._done = 0  # tokens whose frames are made
        self._past: tuple[Past, ...] = ()  # of the tokens before `_done`, piece by piece
        self._tail = torch.zeros(0)  # frames before `_done` that wait for the crossfade

    @property
    def tokens(self) -> int:
        """Number of tokens that have arrived."""
        return len(self._tokens)

    def push(self, tokens: NDArray[np.integer[Any]]) -> None:
        """Append tokens.

        Raises:
            InvalidInputError: the utterance has ended, or becomes too long.
        """
        if self.ended:
            raise InvalidInputError("tokens after the last one")
        if self.tokens + len(tokens) > self._plan.max_tokens:
            raise InvalidInputError(f"more than {self._plan.max_tokens} tokens in one utterance")
        self._tokens = np.concatenate([self._tokens, tokens.astype(np.int64)])

    def end(self) -> None:
        """No token follows."""
        self.ended = True
        self.finished = self.tokens == 0

    def next_end(self) -> int | None:
        """The token up to which frames can be made now; None when more tokens are needed."""
        if self.finished:
            return None
        # A chunk needs its look-ahead, unless the utterance ends with it.
        ends = self._plan.schedule.ends(self.tokens - LOOKAHEAD)
        if self.ended:
            ends.append(self.tokens)
        ahead = [end for end in ends if end > self._done]
        if not ahead:
            return None
        if self._done == 0:
            return ahead[0]  # the first audio must come as early as possible
        return max([end for end in ahead if end - self._done <= self._plan.max_step], default=ahead[0])

    def row(self, end: int, prompt: Past | None = None) -> FlowRow:
        """The flow's input up to token ``end`` of :meth:`next_end`.

        Args:
            end: last token, exclusive.
            prompt: the voice's past, if it has a prompt and pasts are kept.
        """
        known = self._tokens if self.is_last(end) else self._tokens[: end + LOOKAHEAD]
        ahead = len(known) - end
        chunks, firsts = self._sight(len(known))
        begin = self._done if self.keeps_past else 0
        noise = flow_noise(self._seed, FRAMES_PER_TOKEN * (end - begin), FRAMES_PER_TOKEN * begin)
        if self.keeps_past:
            past = self._past if prompt is None else (prompt, *self._past)
            return FlowRow(self.voice, known[begin:], ahead, chunks[begin:], firsts[begin:], noise, past=past)
        first = len(self.voice.tokens)
        zeros = np.zeros(first, np.int64)
        return FlowRow(
            self.voice,
            np.concatenate([self.voice.tokens, known]),
            ahead,
            np.concatenate([zeros, chunks]),
            np.concatenate([zeros, firsts]),
            np.concatenate([prompt_noise(FRAMES_PER_TOKEN * first), noise]),
            prompt=first,
        )

    def frames_until(self, end: int) -> int:
        """Frames of :meth:`row`."""
        begin = self._done if self.keeps_past else -len(self.voice.tokens)
        return FRAMES_PER_TOKEN * (end - begin)

    def is_last(self, end: int) -> bool:
        """Whether the utterance ends at token ``end``."""
        return self.ended and end == self.tokens

    def frames(self, mel: Tensor, end: int, past: Past | None = None) -> Tensor:
        """Commit a run of :meth:`row`, and return the new frames, ``[80, n]``.

        Args:
            mel: the run's spectrogram without the prompt, ``[80, m]``.
            end: the row's ``end``.
            past: the run's new past, if pasts are kept.
        """
        begin = mel.shape[1] - FRAMES_PER_TOKEN * (end - self._done)
        new = mel[:, begin:]
        self._done = end
        last = self.is_last(end)
        self.finished = last
        if past is not None:
            # Not concatenated: that would copy all of them each time.
            pasts = (*self._past, past)
            self._past = bounded(pasts, self._plan.past_tokens) if self._plan.past_tokens else pasts
        if not self._plan.full_attention:
            return new
        overlap = self._tail.shape[-1] if self._tail.numel() else 0
        if overlap:
            rising = torch.hamming_window(2 * overlap, periodic=False, device=mel.device)[:overlap]
            rising = rising / (rising + rising.flip(0))
            fresh = mel[:, begin - overlap : begin]
            new = torch.cat([self._tail + (fresh - self._tail) * rising, new], dim=1)
        keep = 0 if last else min(_OVERLAP, new.shape[1])
        self._tail = new[:, new.shape[1] - keep :].clone()
        return new[:, : new.shape[1] - keep]

    def _sight(self, tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Chunk of each token, and the first token that it may see."""
        everything = np.zeros(tokens, np.int64)
        if self._plan.full_attention:
            return everything, everything
        chunks, starts = self._plan.schedule.chunks(tokens)
        past_tokens = self._plan.past_tokens
        return chunks, np.maximum(starts - past_tokens, 0) if past_tokens else everything


def prompt_row(voice: AudioVoice) -> FlowRow:
    """The flow's input to make the past that all utterances of a voice share."""
    size = len(voice.tokens)
    zeros = np.zeros(size, np.int64)
    noise = prompt_noise(FRAMES_PER_TOKEN * size)
    return FlowRow(voice, voice.tokens, 0, zeros, zeros, noise, prompt=size)
